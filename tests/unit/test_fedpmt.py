"""FedPMT: masks, both options, eq. 7 by hand, and stages that nobody trains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
import pytest
import torch

from edgebed.errors import RunError, UsageError
from edgebed.methods.base import Contribution, Plan, find_half
from edgebed.methods.fedpmt import FedPmt, Masks, masks_of
from edgebed.methods.parts.capacity import Measured
from edgebed.models.costs import partial_costs
from edgebed.models.staged import Weights
from edgebed.wire.messages import Assignment
from orchestrator.testing.rounds import CPUS, SCHEDULE, batches_of, make_method, play, shard, small_model, view, work_s

LEVELS = (0.2, 0.25, 0.33, 0.5, 1.0)
PAPER = (0.4583, 0.5727, 0.8759, 0.9329, 1.0)


def ready(**options: object) -> FedPmt:
    method = make_method("fedpmt", **options)
    assert isinstance(method, FedPmt)
    return method


def plan(method: FedPmt, cpus: Sequence[float]) -> Plan:
    return method.plan(0, [view(f"d{number}", 10, each) for number, each in enumerate(cpus)], SCHEDULE)


def masks(made: Plan) -> list[int]:
    return [each.train_from for _, each in sorted(made.assignments.items())]


def train(assignment: Assignment, cpus: float = 0.0) -> tuple[Weights, dict[str, float]]:
    """Through the real half, as an agent with `cpus` does."""
    half = find_half("partial")
    filled = msgspec.structs.replace(assignment, cpus=cpus)
    generator = half(small_model(), filled, batches_of(shard("a"), filled))
    with pytest.raises(StopIteration) as stop:
        next(generator)
    return stop.value.value.weights, stop.value.value.notes


def stages_of(names: Sequence[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


# ---- masks ----


def test_the_widths_of_table_2() -> None:
    """|I| widths: the narrowest leaves |I| - 1 front stages alone; the classifier is always trained."""
    model = small_model()
    assert masks_of(model, None) == (3, 2, 1, 0)
    assert masks_of(model, 2) == (1, 0)
    assert masks_of(model, 1) == (0,)
    with pytest.raises(UsageError, match="5 widths"):
        masks_of(model, 5)


def test_costs_by_hand() -> None:
    """Forward operations 2·36·9·(1·3, 3·4, 4·5) and 2·5·4: backward costs twice forward where it goes."""
    flops = [2 * 36 * 9 * pair for pair in (3, 12, 20)] + [2 * 5 * 4]
    whole = sum(flops)
    expected = [(whole + 2 * sum(flops[first:])) / (3 * whole) for first in (3, 2, 1, 0)]
    assert partial_costs(small_model(), (3, 2, 1, 0)) == pytest.approx(expected)
    assert expected[-1] == 1


def test_bytes_by_mask() -> None:
    """Parameters and running statistics in float32, a counter of 8 bytes per batch norm."""
    layers = [4 * (9 * a * b + b + 4 * b) + 8 for a, b in ((1, 3), (3, 4), (4, 5))] + [4 * (5 * 4 + 4)]
    assert ready().traffic == [sum(layers) + sum(layers[first:]) for first in (3, 2, 1, 0)]


def test_option_1_gives_every_device_the_widest_mask_that_does_not_hold_the_round_up() -> None:
    """The paper's levels and costs. The slowest takes .4583/.2 = 2.29 s; .5727/.25 = 2.29 s, .5727/.33 = 1.74 s but
    .8759/.33 = 2.65 s; 1/.5 = 2 s, so two devices can do all."""
    costs = (*PAPER[:2], PAPER[2], 1.0)
    assert masks(plan(ready(costs=costs), LEVELS)) == [3, 2, 2, 0, 0]


def test_a_deadline_widens_the_masks() -> None:
    """Table III: 26.5 s, 10 s for the full model at full speed; .8759 · 10 / .33 = 26.54 s."""
    method = ready(costs=(*PAPER[:3], 1.0), deadline_s=26.55)
    shown = Measured({3: 10 / 3}, last=3)  # 10 s over three batches, at 1 CPU
    method.powers.measured = {f"d{number}": shown for number in range(5)}
    made = plan(method, LEVELS)
    assert masks(made) == [3, 2, 1, 0, 0]
    seconds = [cost * 10 / level for cost, level in zip((*PAPER[:3], 1.0, 1.0), LEVELS, strict=True)]
    assert [made.predicted_s[f"d{number}"] for number in range(5)] == pytest.approx(seconds)


def test_the_paper_s_own_assignment() -> None:
    assert masks(plan(ready(levels=(0.2, 0.25, 0.33, 0.5)), [0.2, 0.25, 0.33, 0.5, 1.0])) == [3, 2, 1, 0, 0]
    assert masks(plan(ready(widths=2, levels=(0.2, 1.0)), [0.4, 0.8, 2.0])) == [1, 1, 0]


def test_wrong_costs_and_levels_are_refused() -> None:
    for wrong in ({"costs": [0.5, 1.0]}, {"costs": [0.5, 0.4, 0.3, 0.2]}, {"levels": [0.5]}):
        with pytest.raises(UsageError, match=r"4 (widths|sizes)"):
            ready(**wrong)


# ---- option II ----


def test_option_2_sends_all_masks_and_the_device_chooses_by_its_own_cpus() -> None:
    method = ready(chooser="device", levels=(0.2, 0.25, 0.5, 1.0))
    made = plan(method, [0.5, 0.4, 2.0])
    assert masks(made) == [0, 0, 0]
    assignment = made.assignments["d0"]
    offered = msgspec.convert(assignment.options["masks"], Masks)
    assert offered == Masks((3, 2, 1, 0), (0.4, 0.5, 1.0, 2.0))
    for cpus, expected in ((0.1, 3), (0.4, 3), (0.5, 2), (1.9, 1), (2.0, 0)):
        weights, notes = train(assignment, cpus)
        assert notes == {"train_from": float(expected)}
        assert stages_of([*weights]) == set(small_model().stage_names[expected:])
        assert method.update_names(assignment, notes) == [*weights]


def test_option_2_agrees_with_option_1_where_nothing_was_measured() -> None:
    cpus = [0.1, 0.2, 0.4, 1.0, 4.0]
    planned = masks(plan(ready(), cpus))
    offer = plan(ready(chooser="device"), cpus).assignments["d0"].options["masks"]
    assert [msgspec.convert(offer, Masks).pick(each) for each in cpus] == planned
    assert len(set(planned)) > 1


def test_a_mask_that_was_not_offered_is_refused() -> None:
    method = ready(chooser="device", widths=2)
    assignment = plan(method, [1.0]).assignments["d0"]
    for notes in ({}, {"train_from": 2.0}, {"train_from": 0.5}):
        with pytest.raises(RunError, match="no mask it was offered"):
            method.update_names(assignment, notes)


async def test_option_2_plays() -> None:
    """Beside a far faster device the players take the narrowest mask: only the classifier moves."""
    before = small_model().weights()
    method = ready(chooser="device", levels=(0.7, 0.8, 0.9, 1.0))
    method.powers.cpus = {"elsewhere": 4.0}
    after = await play(method, before, {"a": 10, "b": 5}, range(2))
    assert stages_of([name for name in before if not torch.equal(before[name], after[name])]) == {"md4"}
    assert {d: each.cpu_s for d, each in method.powers.measured.items()} == {
        d: {0: pytest.approx(work_s(CPUS[d], 1, 4) * CPUS[d])} for d in "ab"
    }  # at the mask they took


# ---- eq. 7 ----


async def test_untrained_stages_stay_to_the_bit_running_statistics_and_all() -> None:
    before = {name: value.clone() for name, value in small_model().weights().items()}
    method = ready(widths=3, levels=(0.1, 0.5, 1.0))
    method.powers.cpus = {"elsewhere": 4.0}  # so that both devices here are slow
    after = await play(method, before, {"a": 10, "b": 10}, range(2))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert stages_of([*changed]) == {"md3", "md4"}
    assert {name for name in before if name.startswith("md3.norm.running")} <= changed


def test_eq_7_by_hand() -> None:
    """Per layer the mean of those that trained it, whatever their samples: (1 + 3 + 8) / 3 = 4 at md4, (1 + 3) / 2 = 2
    at md2, 1 at md1; md3 is left out by all."""
    method = ready()
    before = {f"md{stage}": torch.zeros(2) for stage in range(1, 5)}
    assignment = plan(method, [1.0]).assignments["d0"]
    held = {"a": (1.0, ["md1", "md2", "md4"], 10), "b": (3.0, ["md2", "md4"], 500), "c": (8.0, ["md4"], 1)}
    parts = [
        Contribution(device, samples, assignment, {name: torch.full((2,), value) for name in names}, {})
        for device, (value, names, samples) in held.items()
    ]
    merged = method.merge(before, parts)
    assert {name: value.tolist() for name, value in merged.items()} == {
        "md1": [1.0, 1.0],
        "md2": [2.0, 2.0],
        "md3": [0.0, 0.0],
        "md4": [4.0, 4.0],
    }
    by_samples = ready(aggregate="samples").merge(before, parts)["md2"]
    assert by_samples.tolist() == pytest.approx([(10 * 1 + 500 * 3) / 510] * 2)


async def test_the_widest_mask_is_fedavg() -> None:
    before = small_model().weights()
    ours = await play(ready(widths=1, aggregate="samples"), before, {"a": 10, "b": 5}, range(2))
    plain = await play(make_method("fedavg"), before, {"a": 10, "b": 5}, range(2))
    assert all(torch.equal(ours[name], plain[name]) for name in before)


# ---- who takes part ----


def test_a_round_draws_equally_many_devices_of_every_compute_level() -> None:
    """§V-B: |S_i| = |S| / |I|: two of each of five levels of twenty devices, other ones in other rounds."""
    devices = [view(f"d{level}-{number:02}", 10, level) for level in LEVELS for number in range(20)]
    drawn = [ready().draw(number, devices, 0.1, seed=7) for number in range(20)]
    assert all(Counter(each.cpus for each in round) == dict.fromkeys(LEVELS, 2) for round in drawn)
    assert len({each.name for round in drawn for each in round}) > 60
    random = [ready(draw="random").draw(number, devices, 0.1, seed=7) for number in range(20)]
    assert any(Counter(each.cpus for each in round) != dict.fromkeys(LEVELS, 2) for round in random)


def test_a_number_that_does_not_divide_and_a_level_with_too_few_devices() -> None:
    devices = [view(f"d{number}", 10, cpus) for number, cpus in enumerate((0.2, 1.0, 1.0, 1.0, 1.0))]
    assert sorted(each.cpus for each in ready().draw(0, devices, 0.6, 1)) == [0.2, 1.0, 1.0]
    for number in range(9):
        levels = Counter(each.cpus for each in ready().draw(number, [*devices, view("e", 10, 0.2)], 0.5, 1))
        assert sorted(levels.values()) == [1, 2]
    assert ready().draw(0, devices, 1.0, 1) == devices


def test_fedavg_draws_the_same_devices_where_it_is_told_so() -> None:
    devices = [view(f"d{level}-{number:02}", 10, level) for level in LEVELS for number in range(20)]
    assert make_method("fedavg", draw="levels").draw(3, devices, 0.1, 7) == ready().draw(3, devices, 0.1, 7)
