"""S²FL: warm-up, the rule in a plan, groups from uploaded labels, and the ablations."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import msgspec
import pytest
import torch
from torch import Tensor, nn

from edgebed.errors import UsageError
from edgebed.methods.base import Batch, Context, CutCost, DeviceView, Outcome, Plan
from edgebed.methods.parts.time_table import median_rule
from edgebed.methods.s2fl import GroupHalf, S2fl, Sfl, candidate_cuts, profiled_seconds
from edgebed.models.staged import MODELS
from edgebed.models.vgg import SPLIT_POINTS
from edgebed.wire.messages import Report
from edgebed.wire.settings import LearningTask, Optimizer
from orchestrator.testing.rounds import CPU, SCHEDULE, batches_of, make_method, play, shard, small_model, view

OPTIMIZERS = {
    "sgd": (Optimizer("sgd", 0.05, momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)),
    "adam": (Optimizer("adam", 0.01), lambda p: torch.optim.Adam(p, lr=0.01)),
}
CUTS = {"a": 1, "b": 2}


def ready(**options: object) -> S2fl:
    method = make_method("s2fl", **options)
    assert isinstance(method, S2fl)
    return method


UNEVEN = {"a": (9, 0, 0, 0), "b": (0, 9, 0, 0), "c": (8, 0, 0, 0), "d": (0, 8, 0, 0)}
"""Labels of the shards of devices a to d."""


def device(name: str, samples: int = 10, labels: tuple[int, ...] = ()) -> DeviceView:
    return msgspec.structs.replace(view(name, samples), labels=labels)


def plan(method: S2fl, round: int, devices: str = "ab", labels: Mapping[str, tuple[int, ...]] | None = None) -> Plan:
    known = labels or {}
    return method.plan(round, [device(name, 10, known.get(name, ())) for name in devices], SCHEDULE)


def cuts(made: Plan) -> dict[str, int]:
    return {name: each.stages for name, each in made.assignments.items()}


def learn(method: S2fl, made: Plan, seconds: Mapping[str, float], round: int = 0) -> None:
    report = Report(10, 3, 1.0, 0.5, 0.5, None, 100, 0.1, 100, 0.1, 0.0)
    method.observe(
        round, [Outcome(d, made.assignments[d], report, s, 0.2, 1e6, 0.1) for d, s in sorted(seconds.items())]
    )


# ---- cuts ----


def test_warm_up_tries_the_cuts_in_turn_then_the_median_rule_chooses() -> None:
    method = ready()
    times = [{"a": 1.0, "b": 5.0}, {"a": 2.0, "b": 10.0}, {"a": 4.0, "b": 20.0}]
    for round, seconds in enumerate(times):
        made = plan(method, round)
        assert cuts(made) == {"a": round + 1, "b": round + 1}
        assert made.notes["median_s"] is None
        learn(method, made, seconds, round)
    made = plan(method, 3)  # 1 2 4 5 10 20: median 4.5
    assert made.notes["median_s"] == 4.5
    assert cuts(made) == {"a": 3, "b": 1}
    assert made.predicted_s == {"a": 4.0, "b": 5.0}
    learn(method, made, {"a": 5.0, "b": 7.0}, 3)
    assert plan(method, 4).predicted_s == {"a": 4.5, "b": 6.0}


def test_a_device_met_after_the_warm_up_begins_shallow_and_is_scaled_from_there() -> None:
    method = ready()
    for round in range(3):
        learn(method, plan(method, round, "a"), {"a": float(round + 1)}, round)
    made = plan(method, 3, "ab")
    assert cuts(made)["b"] == 1
    assert "b" not in made.predicted_s
    learn(method, made, {"a": 3.0, "b": 1.0}, 3)
    row = plan(method, 4, "ab").notes["times_s"]["b"]  # type: ignore[index]
    assert row == {"1": 1.0, "2": 2.5, "3": 3.0}  # as a's rounds were: 1, (2 + 3) / 2, 3


def test_without_measured_costs_operations_are_counted() -> None:
    method = ready()
    method.setup(Context({"name": "small"}, small_model(), {}, server_slots=1))
    learn(method, plan(method, 0, "a"), {"a": 1.0})
    row = plan(method, 1, "a").notes["times_s"]["a"]  # type: ignore[index]
    convolutions = [9 * 1 * 3, 9 * 3 * 4, 9 * 4 * 5]  # kernel x channels in x filters, on maps of one size
    assert [row[str(cut)] for cut in (2, 3)] == [pytest.approx(sum(convolutions[:cut]) / 27) for cut in (2, 3)]


def test_the_paper_warms_up_on_all_devices() -> None:
    """§3.1: W_c goes to all the devices in the first K rounds, whatever share is drawn afterwards."""
    devices = [view(f"d{number}") for number in range(10)]
    for options, expected in (({}, [10, 10, 10, 3]), ({"warm_up": "drawn"}, [3, 3, 3, 3])):
        method = ready(**options)
        assert [len(method.draw(round, devices, 0.3, 1)) for round in range(4)] == expected


def test_own_work_leaves_the_wait_for_others_out() -> None:
    """0.2 s of link, 100 B of gradients back at 1 MB/s, 0.5 s of compute, and of the 0.1 s of the server's half what is
    its own: half of it beside an equal device; the round took 9 s."""
    method = ready(times="own", sliding=False)
    made = plan(method, 0, labels=UNEVEN)
    assert made.predicted_s == {}
    learn(method, made, {"a": 9.0, "b": 9.0})
    assert method.memory.table.measured("a", 3) == pytest.approx(0.7501)
    method = ready(times="own", sliding=False)
    learn(method, plan(method, 0, labels=UNEVEN), {"a": 9.0})  # b is lost
    assert method.memory.table.measured("a", 3) == pytest.approx(0.8001)
    method.memory.table.add("b", 3, 2.0)
    assert plan(method, 1, labels=UNEVEN).predicted_s == {"a": 2.0, "b": 2.0}  # one group: both wait for b


def test_candidate_cuts() -> None:
    model = small_model()
    assert candidate_cuts(model, ()) == (1, 2, 3)
    assert candidate_cuts(model, (1, 3)) == (1, 3)
    deep = MODELS.create({"name": "fcnn", "hidden": [9, 8, 7, 6, 5]}).build(LearningTask((1, 2, 2), 4))
    assert candidate_cuts(deep, ()) == (1, 3, 5)
    assert candidate_cuts(MODELS.create({"name": "vgg16"}).build(LearningTask((3, 32, 32), 10)), ()) == SPLIT_POINTS
    for wrong in ((2, 1), (1, 1), (4,)):
        with pytest.raises(UsageError, match="cuts"):
            candidate_cuts(small_model(), wrong)


# ---- groups ----


def test_groups_are_of_this_round_s_devices_and_their_labels_from_the_first_balanced_round_on() -> None:
    """Algorithm 2, line 10. Nothing was trained or uploaded yet: Presence tells the labels."""
    method = ready()
    assert plan(method, 3, "abcd", UNEVEN).notes["groups"] == [("a", "b"), ("c", "d")]
    assert plan(method, 4, "abc", UNEVEN).notes["groups"] == [("a", "b"), ("c",)]
    halves = method.server_halves(small_model().weights(), plan(method, 5, "acd", UNEVEN).assignments, CPU)
    assert [half.devices for half in halves] == [("a",), ("c", "d")]


def test_who_stands_alone() -> None:
    """All while whole rounds are measured; later a device whose labels nobody knows, or that make no sense."""
    alone = [("a",), ("b",), ("c",), ("d",)]
    for round in range(3):
        assert plan(ready(), round, "abcd", UNEVEN).notes["groups"] == alone
    assert plan(ready(times="own"), 0, "abcd", UNEVEN).notes["groups"] == [("a", "b"), ("c", "d")]
    assert plan(ready(), 3, "abcd").notes["groups"] == alone
    for wrong in ((), (9, 0), (-9, 20, 0, 0), (0, 0, 0, 0)):
        labels = {**UNEVEN, "a": wrong}
        assert plan(ready(), 3, "abcd", labels).notes["groups"] == [("a",), ("b",), ("c", "d")]


@pytest.mark.parametrize(
    ("options", "expected_cuts", "groups"),
    [
        ({"sliding": False, "balance": False}, {"a": 3, "b": 3}, [("a",), ("b",)]),
        ({"sliding": False}, {"a": 3, "b": 3}, [("a", "b")]),
        ({"balance": False}, {"a": 2, "b": 1}, [("a",), ("b",)]),
        ({}, {"a": 2, "b": 1}, [("a", "b")]),
    ],
)
def test_the_ablations(options: dict[str, object], expected_cuts: dict[str, int], groups: list[object]) -> None:
    method = ready(**options)
    for cut in (1, 2, 3):
        method.memory.table.add("a", cut, float(cut))
        method.memory.table.add("b", cut, 2.0 * cut)
    made = plan(method, 3, labels=UNEVEN)
    assert (cuts(made), made.notes["groups"]) == (expected_cuts, groups)


def test_sfl_is_the_largest_cut_without_groups() -> None:
    method = make_method("sfl", cuts=[1, 2])
    assert isinstance(method, Sfl)
    made = plan(method, 0, labels=UNEVEN)
    assert cuts(made) == {"a": 2, "b": 2}
    assert made.notes["groups"] == [("a",), ("b",)]


# ---- exactness ----


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
@pytest.mark.parametrize("name", ["s2fl", "sfl"])
async def test_one_device_equals_centralised_training(
    name: str, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit, over rounds at every cut; the optimizer starts anew with each round."""
    spec, make = OPTIMIZERS[optimizer]
    schedule = msgspec.structs.replace(SCHEDULE, optimizer=spec)
    monkeypatch.setattr("orchestrator.testing.rounds.SCHEDULE", schedule)
    method = make_method(name)
    merged = await play(method, small_model().weights(), {"a": 10}, range(4))
    model = small_model()
    model.train()
    for round in range(4):
        assignment = method.plan(round, [view("a")], schedule).assignments["a"]
        chosen = make([p for n, p in model.named_parameters() if not n.startswith("head")])
        for x, y in batches_of(shard("a"), assignment):
            chosen.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            chosen.step()
    for weight, value in model.state_dict().items():
        assert torch.equal(merged[weight], value), weight


def plain_group(batches: Mapping[str, list[Batch]]) -> Mapping[str, Mapping[str, Tensor]]:
    """A group in plain torch: device parts of their own, one shared upper part; by part its weights."""
    lower = {d: copy.deepcopy(small_model().lower(cut)).train() for d, cut in CUTS.items()}
    shared = small_model()
    shared.train()
    optimizers = {d: torch.optim.SGD(part.parameters(), lr=0.05) for d, part in lower.items()}
    upper = torch.optim.SGD(shared.upper(1).parameters(), lr=0.05)
    for step in range(max(len(each) for each in batches.values())):
        going = [d for d in sorted(batches) if step < len(batches[d])]
        used = [upper, *(optimizers[d] for d in going)]
        for optimizer in used:
            optimizer.zero_grad()
        losses = []
        for d in going:
            x, y = batches[d][step]
            losses.append(nn.functional.cross_entropy(shared.upper(CUTS[d])(lower[d](x)), y))
        torch.stack(losses).sum().backward()
        for optimizer in used:
            optimizer.step()
    return {"shared": shared.state_dict(), **{d: part.state_dict() for d, part in lower.items()}}


def two_cuts(monkeypatch: pytest.MonkeyPatch) -> S2fl:
    """Devices a and b in one group, at cuts 1 and 2, in any round from 3 on."""
    schedule = msgspec.structs.replace(SCHEDULE, optimizer=Optimizer("sgd", 0.05))
    monkeypatch.setattr("orchestrator.testing.rounds.SCHEDULE", schedule)
    method = ready()
    for cut in (1, 2, 3):
        method.memory.table.add("b", cut, float(cut))
        method.memory.table.add("a", cut, 2.0 * cut)
    made = method.plan(3, [device(d, n, UNEVEN[d]) for d, n in (("a", 10), ("b", 5))], schedule)
    assert (cuts(made), made.notes["groups"]) == (CUTS, [("a", "b")])
    return method


async def test_a_group_of_two_cuts_equals_plain_torch_and_merges_by_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """b ends before a. Algorithm 1: stage 1 is held by both devices, stage 2 by b and by a's copy on the server."""
    method, sizes = two_cuts(monkeypatch), {"a": 10, "b": 5}
    assignments = method.plan(3, [view(d, n) for d, n in sizes.items()], SCHEDULE).assignments
    plain = plain_group({d: list(batches_of(shard(d, n), assignments[d])) for d, n in sizes.items()})
    merged = await play(method, small_model().weights(), sizes, range(3, 4), order=2)
    assert torch.equal(merged["md3.conv.weight"], plain["shared"]["md3.conv.weight"])
    for name, other in (("md1.conv.weight", plain["a"]), ("md2.conv.weight", plain["shared"])):
        expected = (10 * other[name].double() + 5 * plain["b"][name].double()) / 15
        assert torch.allclose(merged[name].double(), expected, atol=1e-6)


async def test_a_group_survives_a_lost_device(monkeypatch: pytest.MonkeyPatch) -> None:
    before = small_model().weights()
    merged = await play(two_cuts(monkeypatch), before, {"a": 10, "b": 5}, range(3, 4), lost=("a",))
    assert all(bool(torch.isfinite(value).all()) for value in merged.values())
    assert not torch.equal(merged["md1.conv.weight"], before["md1.conv.weight"])


def test_a_group_half_holds_the_stages_from_its_shallowest_cut_on() -> None:
    assignments = plan(ready(), 0).assignments
    deeper = {**assignments, "b": msgspec.structs.replace(assignments["b"], stages=3)}
    half = GroupHalf(small_model(), small_model().weights(), deeper, CPU)
    assert set(half.weights()) == set(small_model().upper(1).state_dict())
    alone = GroupHalf(small_model(), small_model().weights(), {"b": deeper["b"]}, CPU)
    assert set(alone.weights()) == set(small_model().upper(3).state_dict())


# ---- the time table without a warm-up ----


def test_profiled_costs_fill_the_table_before_the_first_round() -> None:
    """Eq. 1 at cut 1: 10 samples are 2.5 batches; (1000 B + 2.5 x 40,000 B) both ways at 1.25 MB/s, and 2.5 x (0.1 s
    ÷ 0.5 CPUs + 0.3 s). The median rule chooses in round 0, and a measured time is the second of the mean."""
    method = ready(warm_up="profile", times="own")
    assert method.needs_costs
    slow, fast = view("slow", 10, cpus=0.5), view("fast", 10, cpus=4.0)
    assert method.draw(0, [slow, fast], 0.5, 1) == method.draw(0, [slow, fast], 0.5, 1)
    assert len(method.draw(0, [slow, fast], 0.5, 1)) == 1, "no round of all devices"
    made = method.plan(0, [slow, fast], SCHEDULE)
    table = method.memory.table
    assert table.measured("slow", 1) == pytest.approx(2 * 101_000 / 1.25e6 + 2.5 * (0.1 / 0.5 + 0.3))
    rows = {d: {cut: table.measured(d, cut) or 0.0 for cut in (1, 2, 3)} for d in ("slow", "fast")}
    assert (made.notes["median_s"], cuts(made)) == median_rule(rows)
    assert made.predicted_s == {d: rows[d][cut] for d, cut in cuts(made).items()}
    chosen, before = cuts(made)["slow"], table.measured("slow", cuts(made)["slow"])
    table.add("slow", chosen, 9.0)
    method.plan(1, [slow, fast], SCHEDULE)
    assert before is not None
    assert table.measured("slow", chosen) == pytest.approx((before + 9.0) / 2)


def test_max_batches_and_epochs_count_in_a_profiled_time() -> None:
    cost = CutCost(1, 0, 0, device_s=1.0, server_s=0.0)
    schedule = msgspec.structs.replace(SCHEDULE, epochs=3)
    assert profiled_seconds(view("a", 10), schedule, cost) == 7.5
    assert profiled_seconds(view("a", 10), msgspec.structs.replace(schedule, max_batches=1), cost) == 3.0


def test_a_cut_without_a_head_cannot_be_profiled() -> None:
    method = S2fl(S2fl.Options(cuts=(1, 2), warm_up="profile"))
    model = small_model()
    model.cuts_with_head = [1]
    with pytest.raises(UsageError, match=r"cuts \[2\] cannot be profiled"):
        method.setup(Context({"name": "small"}, model, {}, server_slots=1))


# ---- controls for the balance ----


def test_random_groups_are_drawn_anew_each_round_whatever_the_labels() -> None:
    method = ready(grouping="random")
    found = [plan(method, round, "abcd", UNEVEN).notes["groups"] for round in range(3, 20)]
    assert found == [plan(method, round, "abcd").notes["groups"] for round in range(3, 20)]
    assert {tuple(map(tuple, groups)) for groups in found} == {  # type: ignore[arg-type]
        (("a", "b"), ("c", "d")),
        (("a", "c"), ("b", "d")),
        (("a", "d"), ("b", "c")),
    }


def test_the_mean_of_the_losses_makes_a_step_as_large_as_one_device_s() -> None:
    """SGD: the step of a pair and the gradients that go back are half of those of the sum."""
    spec = msgspec.structs.replace(SCHEDULE, optimizer=Optimizer("sgd", 0.05))
    generator = torch.Generator().manual_seed(3)
    uploads = {
        name: {"features": torch.randn(4, 5, 6, 6, generator=generator), "labels": torch.arange(4)} for name in "ab"
    }
    start = small_model().weights()
    steps, gradients = [], []
    for loss in ("sum", "mean"):
        method = ready(sliding=False, loss=loss)
        made = method.plan(0, [device(name, 10, UNEVEN[name]) for name in "ab"], spec)
        (half,) = method.server_halves(start, made.assignments, CPU)
        replies = half.step(uploads)
        steps.append(half.weights()["md4.fc.weight"] - start["md4.fc.weight"])
        gradients.append(replies["a"]["gradient"])  # type: ignore[index]
    torch.testing.assert_close(steps[0], 2 * steps[1])
    torch.testing.assert_close(gradients[0], 2 * gradients[1])
