"""Early exits: the update is unbiased, weightings and coefficients by hand, and which exit serves what."""

from __future__ import annotations

import itertools
import math

import msgspec
import pytest
import torch

from edgebed.datasets.partition import by_layers
from edgebed.datasets.tree import layer_shares
from edgebed.errors import UsageError
from edgebed.methods.base import METHODS, Context, Contribution
from edgebed.methods.early_exit import EarlyExit, coefficients, exit_of, exit_weights
from edgebed.methods.parts.exits import (
    NEVER,
    exit_cuts,
    exit_flops,
    exit_names,
    serve_above,
    serve_most_confident,
    served_score,
    thresholds,
)
from edgebed.models.staged import Weights
from edgebed.wire.messages import Assignment
from orchestrator.testing.rounds import CPU, SCHEDULE, small_model, view

approx = pytest.approx

SAMPLES = {"edge": 9, "leaf-1": 10, "leaf-2": 5, "cloud": 16}
PARENTS = {"leaf-1": "edge", "leaf-2": "edge", "edge": "cloud"}


def method(**options: object) -> EarlyExit:
    made = METHODS.create({"name": "early-exit", "parents": PARENTS, "rates": [70, 20, 10], **options})
    assert isinstance(made, EarlyExit)
    made.setup(Context({"name": "small"}, small_model(), {}, 1, devices=tuple(SAMPLES)))
    return made


def start() -> Weights:
    return {name: value.clone().double() for name, value in small_model().weights().items()}


def trained(before: Weights, node: str, exit: int, cut: int) -> Weights:
    """What node and exit would send: any numbers, the same whenever they are asked for."""
    generator = torch.Generator().manual_seed(hash((len(node), node[-1] == "1", exit)) % 1000)
    names = exit_names(small_model(), cut)
    return {n: before[n] + torch.randn(before[n].shape, generator=generator, dtype=torch.float64) for n in names}


def with_exit(assignment: Assignment, exit: int) -> Assignment:
    """The assignment of a node that drew another exit."""
    return msgspec.structs.replace(assignment, options={"exit": exit})


def played(made: EarlyExit, exits: dict[str, int], before: Weights) -> Weights:
    """The merge of a round in which the nodes drew `exits`."""
    views = [view(name, count) for name, count in sorted(SAMPLES.items())]
    plan = made.plan(0, views, SCHEDULE)
    parts = []
    for node, exit in sorted(exits.items()):
        assignment = with_exit(plan.assignments[node], exit)
        assert assignment.steps > 0
        weights = trained(before, node, exit, made.cuts[exit - 1])
        parts.append(Contribution(node, SAMPLES[node], assignment, weights, {}))
    return made.merge(before, parts)


@pytest.mark.parametrize("weighting", ["equal", "flops_prop", "serving_rate", "balanced_adj"])
def test_the_update_is_unbiased_over_the_exits_drawn(weighting: str) -> None:
    """Every outcome of the draw with its probability, against the sum over all pairs written out."""
    made, before = method(p=0.2, weighting=weighting, server_lr=0.5), start()
    parameters = [name for name, _ in small_model().named_parameters()]
    expected = {name: torch.zeros_like(before[name]) for name in parameters}
    nodes, total = sorted(SAMPLES), 0.0
    for drawn in itertools.product(*(range(1, len(made.chances[node]) + 1) for node in nodes)):
        exits = dict(zip(nodes, drawn, strict=True))
        probability = math.prod(made.chances[node][exit - 1] for node, exit in exits.items())
        total += probability
        after = played(made, exits, before)
        for name in parameters:
            expected[name] += probability * (after[name] - before[name])
    assert total == approx(1.0)
    full = {name: torch.zeros_like(before[name]) for name in parameters}
    for exit, cut in enumerate(made.cuts, 1):
        able = [node for node in nodes if made.tree is not None and made.tree.exits[node] >= exit]
        for node in able:
            share = made.weights[exit - 1] * SAMPLES[node] / sum(SAMPLES[n] for n in able)
            for name, value in trained(before, node, exit, cut).items():
                if name in full:
                    full[name] += 0.5 * share * (value - before[name])
    for name in parameters:
        torch.testing.assert_close(expected[name], full[name], rtol=1e-9, atol=1e-12)
        if not name.startswith("head"):
            assert full[name].abs().max() > 0


def exits_drawn(made: EarlyExit, round: int, *nodes: str) -> dict[str, object]:
    assignments = made.plan(round, [view(node) for node in nodes], SCHEDULE).assignments
    return {node: assignment.options["exit"] for node, assignment in assignments.items()}


def test_the_draw_has_the_probabilities_that_it_claims() -> None:
    made = method(p=0.2)
    count = [0, 0, 0]
    for number in range(4000):
        count[exits_drawn(made, number, "cloud")["cloud"] - 1] += 1
    assert [c / 4000 for c in count] == approx([0.2, 0.2, 0.6], abs=0.03)
    assert {exits_drawn(made, number, "leaf-1")["leaf-1"] for number in range(50)} == {1}


@pytest.mark.parametrize(
    ("layers", "shares", "largest", "mean"),
    [
        ([4, 2, 1], "equal", 118, 51),
        ([4, 2, 1], "biased", 201, 51),
        ([4, 2, 1], "highly_biased", 270, 51),
        ([12, 4, 1], "equal", 118, 22),
    ],
)
def test_every_node_makes_the_steps_of_the_largest_nodes_epoch_or_of_the_mean(
    layers: list[int], shares: str, largest: int, mean: int
) -> None:
    """The paper's partitions of 45,000 samples, in batches of 128."""
    nodes = [f"node-{number:02}" for number in range(sum(layers))]
    parts = by_layers([0] * 45_000, layers, layer_shares(shares, len(layers)), 0)
    counts = [len(rows) for layer in parts for rows in layer]
    views = [view(name, count) for name, count in zip(nodes, counts, strict=True)]
    for epoch_of, steps in (("largest", largest), ("mean", mean)):
        made = METHODS.create({"name": "early-exit", "layers": layers, "epoch_of": epoch_of})
        made.setup(Context({"name": "small"}, small_model(), {}, 1, devices=tuple(nodes)))
        plan = made.plan(0, views, msgspec.structs.replace(SCHEDULE, batch_size=128))
        assert {assignment.steps for assignment in plan.assignments.values()} == {steps}


def test_coefficients_by_hand() -> None:
    """Nodes a (exit 1) with 30 samples and b (exits 1 and 2, p = 0.25) with 10; Λ̃ = 0.8, 0.2."""
    chances = {"a": [1.0], "b": [0.25, 0.75]}
    got = coefficients([("a", 1), ("b", 1), ("b", 2)], {"a": 30, "b": 10}, chances, [0.8, 0.2])
    assert got == approx([0.8 * 30 / 40, 0.8 * 10 / 40 / 0.25, 0.2 / 0.75])


def test_with_p_zero_an_exit_has_only_its_own_nodes() -> None:
    chances = {"a": [1.0], "b": [0.0, 1.0]}
    assert coefficients([("a", 1), ("b", 2)], {"a": 30, "b": 10}, chances, [0.8, 0.2]) == approx([0.8, 0.2])


def test_a_lost_node_leaves_the_federation_of_the_round() -> None:
    """leaf-1 lost: leaf-2 alone speaks for exit 1, and the others count as ever."""
    made, before = method(), start()
    exits = {"leaf-2": 1, "edge": 2, "cloud": 3}
    after = played(made, exits, before)
    head = f"head{made.cuts[0]}.fc.weight"
    moved = trained(before, "leaf-2", 1, made.cuts[0])[head]
    torch.testing.assert_close(after[head], before[head] + 0.7 * (moved - before[head]))


def test_a_share_of_the_nodes_is_weighted_by_its_chance() -> None:
    made, before = method(), start()
    views = [view(name, count) for name, count in sorted(SAMPLES.items())]
    drawn = made.draw(5, views, 0.5, 1)
    (one, *_) = drawn
    assignment = made.plan(5, [one], SCHEDULE).assignments[one.name]
    exit = exit_of(assignment)
    part = trained(before, one.name, exit, made.cuts[exit - 1])
    after = made.merge(before, [Contribution(one.name, one.samples, assignment, part, {})])
    able = sum(n for node, n in SAMPLES.items() if made.tree is not None and made.tree.exits[node] == exit)
    name = exit_names(small_model(), made.cuts[exit - 1])[0]
    share = made.weights[exit - 1] * one.samples / able / 0.5
    torch.testing.assert_close(after[name], before[name] + share * (part[name] - before[name]))


def test_running_statistics_are_a_mean_however_large_the_coefficients() -> None:
    made, before = method(p=0.05), start()
    after = played(made, {"leaf-1": 1, "leaf-2": 1, "edge": 1, "cloud": 1}, before)
    parts = [trained(before, node, 1, made.cuts[0])["md1.norm.running_var"] for node in SAMPLES]
    least, most = torch.stack(parts).amin(0), torch.stack(parts).amax(0)
    assert bool(((after["md1.norm.running_var"] >= least) & (after["md1.norm.running_var"] <= most)).all())


def test_the_four_weightings_by_hand() -> None:
    rates, flops = [0.8, 0.15, 0.05], [10, 30, 60]
    assert exit_weights("equal", rates, flops) == approx([1 / 3] * 3)
    assert exit_weights("flops_prop", rates, flops) == approx([0.1, 0.3, 0.6])
    assert exit_weights("serving_rate", rates, flops) == rates
    assert exit_weights("balanced_adj", rates, flops) == approx([0.45, 0.225, 0.325])


def test_flops_of_an_exit_by_hand() -> None:
    """6x6 maps, 3x3 convolutions 1->3->4->5 and fc heads, two operations per multiplication and addition."""
    convolutions = [2 * 36 * 9 * a * b for a, b in ((1, 3), (3, 4), (4, 5))]
    expected = [convolutions[0] + 2 * 3 * 4, sum(convolutions[:2]) + 2 * 4 * 4, sum(convolutions) + 2 * 5 * 4]
    assert exit_flops(small_model(), (1, 2, 4)) == expected


@pytest.mark.parametrize(("exits", "cuts"), [(1, (4,)), (2, (2, 4)), (3, (2, 3, 4)), (4, (1, 2, 3, 4))])
def test_exits_are_spread_over_the_heads(exits: int, cuts: tuple[int, ...]) -> None:
    assert exit_cuts(small_model(), exits) == cuts


@pytest.mark.parametrize("wanted", [[1], [2, 1], [1, 4], [1, 2, 3]])
def test_exits_where_there_is_no_head_are_refused(wanted: list[int]) -> None:
    with pytest.raises(UsageError):
        exit_cuts(small_model(), 3, wanted)


def test_rates_must_be_one_per_exit() -> None:
    with pytest.raises(UsageError, match="3 exits"):
        method(rates=[1, 2])


# ---- serving ----

SURE = torch.tensor([[0.9, 0.2, 0.8, 0.5, 0.7], [0.1, 0.9, 0.1, 0.3, 0.6], [0.5] * 5])


def test_each_exit_serves_its_most_confident_share() -> None:
    """40 % of five: samples 0 and 2. Of 1, 3, 4 the second exit is surest of 1, then 4."""
    assert serve_most_confident(SURE, [2, 1, 2]).tolist() == [0, 1, 0, 2, 2]
    assert serve_most_confident(SURE, [0, 2, 3]).tolist() == [2, 1, 2, 2, 1]
    assert serve_most_confident(SURE, [0, 0, 1]).tolist() == [2] * 5


def test_thresholds_serve_the_same() -> None:
    assert thresholds(SURE, [2, 1, 2]) == approx([0.8, 0.9, 0.0])
    assert thresholds(SURE, [0, 1, 4])[0] == NEVER


def test_accuracy_is_the_mix_and_extra_each_exit_alone() -> None:
    """Exit 1 is surest of samples 0 and 1, and right in 0; exit 2 is right in all."""
    logits = torch.tensor([[[9.0, 0], [8, 0], [1, 0], [0, 1]], [[9.0, 0], [0, 9], [9, 0], [0, 9]]])
    score = served_score(logits, torch.tensor([0, 1, 0, 1]), [50, 50])
    assert score.accuracy == 0.75
    assert score.extra == {"exit1": 0.75, "exit2": 1.0}


def test_evaluation_serves_every_sample_at_some_exit() -> None:
    made = method()
    x = torch.randn(20, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    weights = {name: value.clone() for name, value in small_model().weights().items()}
    score = made.evaluate(weights, x, torch.arange(20) % 4, CPU)
    assert 0 <= score.accuracy <= 1
    assert list(score.extra) == ["exit1", "exit2", "exit3"]


def test_the_first_exit_that_is_sure_enough_serves() -> None:
    assert serve_above(SURE, [0.8, 0.9, 0.0]).tolist() == [0, 1, 0, 2, 2]
    assert serve_above(SURE, [NEVER, 0.1, 0.0]).tolist() == [1] * 5


def test_the_last_word_is_the_test_set_s_by_thresholds_of_the_validation_part() -> None:
    """Thresholds do not depend on the test samples: alone or among others, a sample is served by the same exit."""
    made = method()
    weights = {name: value.clone() for name, value in small_model().weights().items()}
    x = torch.randn(60, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    y = torch.arange(60) % 4
    validation = x[:30], y[:30]
    whole = made.final(weights, validation, (x[30:], y[30:]), CPU)
    alone = [made.final(weights, validation, (x[i : i + 1], y[i : i + 1]), CPU) for i in range(30, 60)]
    assert whole.accuracy == approx(sum(score.accuracy for score in alone) / 30)
    for exit in ("served1", "served2", "served3"):
        assert whole.extra[exit] == approx(sum(score.extra[exit] for score in alone) / 30)
    same = made.final(weights, validation, validation, CPU)
    assert [same.extra[f"served{exit}"] for exit in (1, 2, 3)] == approx([0.7, 0.2, 0.1])
    assert same.accuracy == made.evaluate(weights, *validation, CPU).accuracy
