"""References: what is recorded, what is told of other tasks, and files."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from edgebed.device.pieces import BY_LAYERS, RECORDED, seconds
from edgebed.errors import UsageError
from edgebed.wire.messages import Assignment
from edgebed.wire.piece_times import PieceTimes
from edgebed.wire.settings import Augment, Codec, Optimizer
from orchestrator.references.layer_costs import BACKWARD, ELEMENTWISE, LAST, LINEAR, UPDATE, WidthLaw
from orchestrator.references.recording import TaskSeen, piece_stats, recorded_work, transfers
from orchestrator.references.reference import PieceStats, Reference, load_reference, save_reference, task_key
from orchestrator.references.task_costs import TaskCosts
from orchestrator.references.unseen import Unseen, unseen
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
