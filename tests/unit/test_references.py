"""References: what is recorded, what is told of other tasks, and files."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from edgebed.device.pieces import BY_LAYERS, RECORDED, SHARES, seconds
from edgebed.errors import UsageError
from edgebed.methods.base import RESOLVES
from edgebed.wire.messages import Assignment
from edgebed.wire.piece_times import PieceTimes
from edgebed.wire.settings import Augment, Codec, Optimizer
from orchestrator.records.host_records import HalfWork, ServerStep, Spent
from orchestrator.records.run_index import RunFacts, sort
from orchestrator.records.types import Record, RoundStarted, RunStarted
from orchestrator.references.layer_costs import BACKWARD, ELEMENTWISE, LAST, LINEAR, UPDATE, WidthLaw
from orchestrator.references.lines import line_through
from orchestrator.references.recording import TaskSeen, piece_stats, recorded_work, server_work, transfers
from orchestrator.references.reference import PieceStats, Reference, half_key, load_reference, save_reference, task_key
from orchestrator.references.task_costs import TaskCosts, spread_of
from orchestrator.references.unseen import Unseen, unseen, upper_bytes
from orchestrator.references.work_laws import SizeLaw

FCNN = {"name": "fcnn"}
LAYERS = {kind: [WidthLaw(1.0, 0.0, 1e-9)] for kind in (LINEAR, LINEAR + BACKWARD, LINEAR + LAST, ELEMENTWISE, UPDATE)}


def assignment(**changes: object) -> Assignment:
    plain = Assignment("a", FCNN, 10, (1, 8, 8), 5, "output", batch_size=32, optimizer=Optimizer("sgd"))
    return msgspec.structs.replace(plain, **changes)


def times(kind: str, size: int, *each_ms: float) -> PieceTimes:
    return PieceTimes(kind, size, len(each_ms), sum(each_ms) / 1e3, tuple(round(ms * 1e3) for ms in each_ms))


def task(*work: PieceTimes, **changes: object) -> TaskSeen:
    plain = TaskSeen(assignment(), work, beside_s=0.01, heard=1, heard_bytes=1000, sent=0, sent_bytes=0)
    return msgspec.structs.replace(plain, **changes)


def test_tasks_of_the_same_work_have_one_key_and_others_another() -> None:
    same = [assignment(), assignment(device="b", seed=7, epochs=3), assignment(optimizer=Optimizer("sgd", lr=0.5))]
    other = [
        assignment(objective="head", stages=1, uploads=("features", "weights")),
        assignment(objective="head", stages=1, uploads=("features", "weights"), codec=Codec("uint8", zstd=True)),
        assignment(train_from=1),
        assignment(keep={"hidden": (0, 1)}),
        assignment(optimizer=Optimizer("adam")),
        assignment(augment=Augment(flip=True)),
        assignment(classes=7),
    ]
    assert len({task_key(each) for each in same}) == 1
    assert len({task_key(each) for each in [same[0], *other]}) == 1 + len(other)


def test_pieces_of_all_tasks_are_recorded_by_kind_and_size() -> None:
    work = recorded_work([task(times("batch", 32, 10, 12), times("batch", 5, 3)), task(times("batch", 32, 14))])
    (kinds,) = work.values()
    small, large = kinds["batch"]
    assert (small.size, small.count, small.mean_s) == (5, 1, pytest.approx(0.003))
    assert (large.size, large.count, large.mean_s) == (32, 3, pytest.approx(0.012))
    assert large.quantiles_s[0] == pytest.approx(0.012)


def test_sizes_of_compressed_bodies_are_rounded_and_those_of_batches_are_not() -> None:
    work = recorded_work([task(times("reply", 14_810, 1), times("batch", 31, 9)), task(times("reply", 15_090, 3))])
    (kinds,) = work.values()
    assert [(each.size, each.count) for each in kinds["reply"]] == [(15_000, 2)]
    assert [each.size for each in kinds["batch"]] == [31]


def test_the_lag_tells_a_drift_from_noise() -> None:
    drifting = piece_stats(8, [times("batch", 8, *range(10, 40))])
    alternating = piece_stats(8, [times("batch", 8, *([10, 20] * 15))])
    assert drifting.lag > 0.7
    assert alternating.lag < -0.7
    assert piece_stats(8, [times("batch", 8, 10), times("batch", 8, 30)]).lag == 0.0


def test_what_transfers_cost_is_found_from_tasks_that_differ_in_them() -> None:
    counts = ((1, 10**6, 0, 0), (1, 10**5, 10, 10**6), (11, 10**6, 10, 10**5), (1, 10**4, 5, 10**4))
    seen = [
        msgspec.structs.replace(
            task(), heard=a, heard_bytes=b, sent=c, sent_bytes=d, beside_s=0.002 * a + 1e-8 * b + 0.003 * c + 2e-8 * d
        )
        for a, b, c, d in counts
    ]
    found = transfers(seen)
    assert found["receive"].fixed_s == pytest.approx(0.002)
    assert found["receive"].byte_s == pytest.approx(1e-8)
    assert found["send"].fixed_s == pytest.approx(0.003)
    assert found["send"].byte_s == pytest.approx(2e-8)


def test_a_line_has_no_negative_part() -> None:
    assert line_through([]) == SizeLaw(0.0, 0.0)
    assert line_through([(1000.0, 1.0), (3000.0, 2.0)]) == SizeLaw(pytest.approx(0.5), pytest.approx(0.0005))
    assert line_through([(1000.0, 2.0), (3000.0, 1.0)]).byte_s == 0.0
    assert line_through([(5000.0, 1.0)]) == SizeLaw(1.0, 0.0)


NOTHING = Unseen()


def reference(work: dict[str, dict[str, list[PieceStats]]], told: Unseen = NOTHING) -> Reference:
    return Reference(name="core", origin={"core": "made up"}, index_s=0.002, work=work, layers=LAYERS, unseen=told)


def test_recorded_pieces_cost_what_was_recorded() -> None:
    work = recorded_work([task(times("batch", 32, 10), times("first batch", 32, 30), times("finish", 1, 1))])
    costs = TaskCosts(reference(work)).of(assignment(seed=3))
    assert costs["batch"].origin == RECORDED
    assert seconds(costs["batch"], 32) == pytest.approx(0.010)
    assert seconds(costs["first batch"], 32) == pytest.approx(0.030)


def test_other_tasks_cost_what_their_layers_add_up_to() -> None:
    half, whole = assignment(batch_size=16), assignment(batch_size=32)
    costs = TaskCosts(reference({}, Unseen(batch_s=0.5, features_s=0.25, factor=2.0, first=3.0)))
    more, less = costs.of(whole)["batch"], costs.of(half)["batch"]
    assert more.origin == BY_LAYERS
    assert seconds(more, 16) == pytest.approx(seconds(less, 16))
    assert 0.5 < seconds(more, 16) < seconds(more, 32)
    assert seconds(costs.of(whole)["first batch"], 32) == pytest.approx(3 * seconds(more, 32))


def test_a_device_that_chooses_its_work_is_charged_for_what_it_chose() -> None:
    work = {**recorded_work([task(times("batch", 32, 10), assignment=assignment(train_from=1))])}
    costs = TaskCosts(reference(work)).of(assignment(train_from=1))
    assert costs["batch"].origin == RECORDED


def test_forward_and_the_rest_make_a_batch() -> None:
    costs = TaskCosts(reference({}, Unseen(batch_s=0.5, factor=2.0, first=3.0))).of(
        assignment(objective="head", stages=2, uploads=("features", "weights"))
    )
    for first in ("", "first "):
        parts = [seconds(costs[f"{first}{kind}"], 32) for kind in ("forward", "rest")]
        assert sum(parts) == pytest.approx(seconds(costs[f"{first}batch"], 32))
        assert min(parts) > 0


def test_the_first_batch_takes_as_much_longer_as_the_recorded_ones_did() -> None:
    key, other = assignment(batch_size=8), assignment(batch_size=16)
    work = {
        "x": {"batch": [PieceStats(8, 9, 0.01)], "first batch": [PieceStats(8, 3, 0.03), PieceStats(7, 1, 9.0)]},
        "y": {"rest": [PieceStats(16, 9, 0.01)], "first rest": [PieceStats(16, 3, 0.05)]},
    }
    told = unseen({"x": key, "y": other}, work, LAYERS, {})
    assert told.first == pytest.approx(4.0), "sizes that differ tell nothing"
    assert unseen({"x": key}, {"x": {"batch": [PieceStats(8, 9, 0.01)]}}, LAYERS, {}).first == 1.0


def test_a_task_is_that_of_the_work_which_the_device_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A half that resolves its assignment by the device's CPUs is charged for what it then does."""
    monkeypatch.setitem(
        RESOLVES, "output", lambda given: msgspec.structs.replace(given, train_from=0 if given.cpus > 0.5 else 3)
    )
    work = recorded_work([task(times("batch", 32, 10), assignment=assignment(train_from=3, cpus=0.2))])
    costs = TaskCosts(reference(work))
    assert costs.of(assignment(cpus=0.2))["batch"].origin == RECORDED
    assert costs.of(assignment(cpus=1.0))["batch"].origin == BY_LAYERS


# ---- how recorded pieces vary ----


def test_the_played_spread_has_the_recorded_mean_and_quantiles() -> None:
    taken = [0.8, 0.9, 0.95, 1.0, 1.0, 1.05, 1.1, 1.2, 1.6, 3.0] * 5
    stats = piece_stats(32, [times("batch", 32, *taken)])
    least, middle, high, most, last = spread_of(stats)
    assert [middle, high, most] == pytest.approx([each / stats.mean_s for each in stats.quantiles_s], rel=0.1)
    assert 0 <= least <= middle
    assert last == most
    points = list(zip(SHARES, (least, middle, high, most, last), strict=True))
    area = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(points))
    assert area == pytest.approx(1.0)


def test_pieces_vary_only_where_that_is_asked_for_and_known() -> None:
    many, few = times("batch", 32, *([10, 12, 20] * 10)), times("first batch", 32, 30, 40)
    made = reference(recorded_work([task(many, few)]))
    assert all(cost.spread == () for cost in TaskCosts(made).of(assignment()).values())
    varying = TaskCosts(made, spread=True).of(assignment())
    assert varying["batch"].spread != ()
    assert varying["batch"].lag == pytest.approx(made.work[task_key(assignment())]["batch"][0].lag)
    assert varying["first batch"].spread == ()


def test_bodies_cost_by_their_bytes_where_they_were_not_recorded() -> None:
    told = Unseen(sizes={"update": SizeLaw(0.001, 1e-6), "encode uint8": SizeLaw(0.0, 2e-6)})
    costs = TaskCosts(reference({}, told)).of(assignment(codec=Codec("uint8")))
    assert seconds(costs["update"], 1000) == pytest.approx(0.002)
    assert seconds(costs["encode"], 1000) == pytest.approx(0.002)
    assert "decode" not in costs


def test_the_error_of_other_tasks_is_that_of_each_recorded_one_told_by_the_others() -> None:
    tasks = [assignment(batch_size=size) for size in (8, 16, 32)]
    keys = {f"{number}": each for number, each in enumerate(tasks)}
    alike = {key: {"batch": [PieceStats(each.batch_size, 9, 0.001 * each.batch_size)]} for key, each in keys.items()}
    assert unseen(keys, alike, LAYERS, {}).error < 0.05
    odd = alike | {"2": {"batch": [PieceStats(32, 9, 0.5)]}}
    assert unseen(keys, odd, LAYERS, {}).error > 0.3
    assert unseen(keys, alike, {}, {}).error == 0.0


# ---- files ----


def test_a_reference_is_read_as_it_was_written(tmp_path: Path) -> None:
    work = recorded_work([task(times("batch", 32, 10, 12))])
    made = reference(work, Unseen(sizes={"update": SizeLaw(0.001, 1e-6)}))
    path = tmp_path / "core.json"
    save_reference(made, path)
    read = load_reference(str(path))
    assert read.work.keys() == made.work.keys()
    assert read.work[task_key(assignment())]["batch"][0].mean_s == pytest.approx(0.011)
    assert (read.unseen, read.layers, read.origin) == (made.unseen, made.layers, made.origin)
    save_reference(read, path)
    assert load_reference(str(path)) == read


def test_a_missing_reference_names_those_that_there_are() -> None:
    with pytest.raises(UsageError, match="there is no reference 'nowhere'") as caught:
        load_reference("nowhere")
    assert "edgebed reference record" in (caught.value.hint or "")


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"version": 1}', b"\xff\xfe"])
def test_a_damaged_reference_is_refused(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "core.json"
    path.write_bytes(text)
    with pytest.raises(UsageError, match=r"core\.json"):
        load_reference(str(path))


def test_a_reference_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "core.json"
    save_reference(msgspec.structs.replace(reference({}), version=99), path)
    with pytest.raises(UsageError, match="version 99"):
        load_reference(str(path))


def one(size: float, mean_s: float) -> PieceStats:
    return PieceStats(size, 1, mean_s)


@pytest.mark.parametrize(
    "broken",
    [
        {"work": {"task": {"batch": []}}},
        {"work": {"task": {"batch": [one(32, 0.1), one(32, 0.2)]}}},
        {"work": {"task": {"batch": [one(32, 0.1), one(8, 0.2)]}}},
        {"work": {"task": {"batch": [one(32, -0.1)]}}},
        {"work": {"task": {"batch": [one(-32, 0.1)]}}},
        {"name": "[red]core\n"},
        {"index_s": 0.0},
        {"index_s": -1.0},
        {"unseen": Unseen(factor=-1.0)},
        {"unseen": Unseen(sizes={"update": SizeLaw(0.1, -1.0)})},
        {"layers": {LINEAR: []}},
        {"layers": {LINEAR: [WidthLaw(2.0, 0.1, 0.1), WidthLaw(2.0, 0.1, 0.1)]}},
        {"layers": {LINEAR: [WidthLaw(2.0, 0.1, -0.1)]}},
    ],
)
def test_costs_that_no_core_can_have_are_refused(tmp_path: Path, broken: dict[str, object]) -> None:
    path = tmp_path / "core.json"
    save_reference(msgspec.structs.replace(reference({}), **broken), path)
    with pytest.raises(UsageError, match=r"core\.json"):
        load_reference(str(path))


# ---- the server's pieces ----

HALF = assignment(objective="head", stages=2, uploads=("features", "weights"))


def served(spent: Spent | None, *, rounds: int = 3) -> RunFacts:
    """A run of DTFL whose devices a and b had halves."""
    plan = {name: msgspec.structs.replace(HALF, device=name) for name in "ab"}
    records: list[Record] = [RunStarted(0, "2026-11-23", "run", "e", "dtfl", 1, "local", "kernel", 1.0, True, 0, 0.9)]
    for number in range(rounds):
        at = 1 + 100 * number
        records.append(RoundStarted(at, number, 0.0, 0.1, ("a", "b"), plan))
        records.append(HalfWork(at, at + 9, number, "make", ("a", "b"), spent))
        records += [ServerStep(at, at + 9, number, (name,), n, at, spent) for name in "ab" for n in range(2)]
        records.append(HalfWork(at, at + 9, number, "read", ("a",), spent))
    return sort(records)


def test_steps_of_a_server_with_cpus_of_its_own_are_recorded() -> None:
    steps, laws = server_work([served(Spent(0.010, 32))])
    (kinds,) = steps.values()
    assert list(steps) == [half_key("dtfl", HALF)]
    assert {kind: (each.size, each.count, each.mean_s) for kind, (each,) in kinds.items()} == {
        "first step": (32, 6, pytest.approx(0.010)),
        "step": (32, 6, pytest.approx(0.010)),
    }
    assert laws["make"].seconds(2 * upper_bytes(HALF)) + laws["make"].fixed_s == pytest.approx(0.010)
    assert laws["read"].seconds(upper_bytes(HALF)) == pytest.approx(0.010)
    assert server_work([served(None)]) == ({}, {})


def grouped(steps: Mapping[str, float], *, rounds: int = 3) -> RunFacts:
    """A run of S²FL; seconds of the steps of a round by their devices. Cuts: a 2, b 3, c 4."""
    plan = {name: msgspec.structs.replace(HALF, device=name, stages=2 + n) for n, name in enumerate("abc")}
    records: list[Record] = [RunStarted(0, "2026-11-23", "run", "e", "s2fl", 1, "local", "kernel", 1.0, True, 0, 0.9)]
    for number in range(rounds):
        at = 1 + 100 * number
        records.append(RoundStarted(at, number, 0.0, 0.1, tuple(plan), plan))
        records.append(HalfWork(at, at + 9, number, "make", tuple(plan), Spent(0.5, 0)))
        for names, cpu_s in steps.items():
            records.append(ServerStep(at, at + 9, number, tuple(names), 1, at, Spent(cpu_s, 32 * len(names))))
    return sort(records)


def test_a_step_of_several_devices_is_divided_between_the_shallowest_and_the_others() -> None:
    work, laws = server_work([grouped({"a": 0.010, "b": 0.008, "ba": 0.016, "abc": 0.020})])
    halves = {name: msgspec.structs.replace(HALF, stages=2 + n) for n, name in enumerate("abc")}
    found = {
        (name, kind): [(each.size, each.count, each.mean_s) for each in sizes]
        for name, half in halves.items()
        for kind, sizes in work[half_key("s2fl", half)].items()
    }
    assert found == {
        ("a", "step"): [(32, 3, pytest.approx(0.010))],
        ("b", "step"): [(32, 3, pytest.approx(0.008))],
        ("b", "joined step"): [(32, 6, pytest.approx((0.006 + 0.005) / 2))],
        ("c", "joined step"): [(32, 3, pytest.approx(0.005))],
    }
    assert "make" not in laws  # how many halves there were is not recorded
    costs = TaskCosts(reference(work))
    a, b, c = (costs.of_half("s2fl", half) for half in halves.values())
    assert seconds(a["step"], 32) + seconds(b["joined step"], 32) == pytest.approx(0.0155)
    assert (b["joined step"].origin, a["joined step"].origin, c["joined step"].origin) == (
        RECORDED,
        BY_LAYERS,
        RECORDED,
    )


def test_where_no_device_was_seen_alone_each_has_an_equal_part() -> None:
    work, _ = server_work([grouped({"abc": 0.030})])
    parts = [(kind, each.size, each.mean_s) for kinds in work.values() for kind, (each,) in kinds.items()]
    assert sorted(parts) == [
        ("joined step", 32, pytest.approx(0.010)),
        ("joined step", 32, pytest.approx(0.010)),
        ("step", 32, pytest.approx(0.010)),
    ]


def test_halves_of_methods_cuts_and_optimizers_differ() -> None:
    others = [assignment(stages=3), assignment(optimizer=Optimizer("adam")), assignment(classes=7)]
    assert len({half_key("dtfl", HALF), half_key("splitfed", HALF), *(half_key("dtfl", a) for a in others)}) == 5
    assert half_key("dtfl", HALF) == half_key("dtfl", msgspec.structs.replace(HALF, device="b", seed=9, epochs=3))


def test_a_half_costs_what_was_recorded_and_others_what_their_layers_add_up_to() -> None:
    steps, laws = server_work([served(Spent(0.010, 32))])
    costs = TaskCosts(reference(steps, Unseen(batch_s=0.5, first=3.0, sizes=laws)))
    recorded, other = costs.of_half("dtfl", HALF), costs.of_half("dtfl", msgspec.structs.replace(HALF, stages=3))
    assert seconds(recorded["step"], 32) == pytest.approx(0.010)
    assert {kind for kind, cost in recorded.items() if cost.origin == BY_LAYERS} == {"joined step", "first joined step"}
    assert other["step"].origin == BY_LAYERS
    assert seconds(other["step"], 32) > 0.5
    assert seconds(other["first step"], 32) == pytest.approx(3 * seconds(other["step"], 32))
    nothing = msgspec.structs.replace(reference({}), layers={})
    assert TaskCosts(nothing).of_half("dtfl", HALF) == {}


@pytest.mark.parametrize("name", ["x86-avx512", "x86-sse41"])
def test_the_references_that_come_with_edgebed_know_the_server_of_the_demo(name: str) -> None:
    costs = TaskCosts(load_reference(name))
    demo = msgspec.structs.replace(HALF, model={"name": "resnet-tiny"}, optimizer=Optimizer("adam"))
    for cut in (1, 3, 7):
        found = costs.of_half("dtfl", msgspec.structs.replace(demo, stages=cut))
        known = {kind for kind, cost in found.items() if cost.origin == RECORDED}
        assert known == {"make", "read", "first step", "step"}
    for cut in (1, 3, 5):  # groups
        grouped = costs.of_half("s2fl", msgspec.structs.replace(demo, stages=cut))
        assert {cost.origin for cost in grouped.values()} == {RECORDED}
        assert 0 < seconds(grouped["joined step"], 32) < seconds(grouped["step"], 32)
    steps = [seconds(costs.of_half("dtfl", msgspec.structs.replace(demo, stages=cut))["step"], 32) for cut in (1, 4, 7)]
    assert steps[0] > steps[1] > steps[2] > 0  # less and less is left to the server
