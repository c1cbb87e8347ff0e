"""Devices that keep a reference's time: late rounds, what a rival leaves, and which runs make no reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from edgebed.errors import UsageError
from edgebed.wire.messages import Assignment
from edgebed.wire.settings import Optimizer
from orchestrator.fleet.host.reference_loop import LoopTimes
from orchestrator.fleet.spec.profile import FleetSpec, load_fleet, unlimited
from orchestrator.fleet.spec.speed import UNMEASURED
from orchestrator.records.account import summarise
from orchestrator.records.compare.comparison import compare
from orchestrator.records.host_records import HalfWork, ServerStep, Spent
from orchestrator.records.run_index import sort
from orchestrator.records.timeline.held import HeldTask, by_origin, late_rounds
from orchestrator.records.types import DeviceDone, Record, RunFinished, RunStarted, UpdateReceived
from orchestrator.references.recording import record
from orchestrator.references.reference import load_reference
from orchestrator.runs.speed import MARGIN, at_wanted_speed, kept_speed
from orchestrator.scenario.agenda import Condition
from tests.synthetic import FLEET, WEAK, Synthetic
from tests.synthetic import Speed as Speeds


def test_a_round_is_late_from_a_hundredth_of_its_length_on() -> None:
    assert late_rounds([(None, 1.0)]) is None
    assert late_rounds([(0.011, 1.0), (0.009, 1.0), (1.0, None)]) == 1


def test_work_is_added_up_by_the_origin_of_its_costs() -> None:
    assert by_origin([]) == {}
    tasks = [HeldTask(0.0, {"recorded": 1.0}), None, HeldTask(0.0, {"recorded": 2.0, "index": 0.5})]
    assert by_origin(tasks) == {"recorded": 3.0, "index": 0.5}


def test_a_rival_takes_what_it_wants_up_to_its_share_of_the_threads() -> None:
    assert Condition().share(0.4, 1) == 1.0
    assert Condition(rival_cpus=0.1).share(0.4, 1) == pytest.approx(0.75)
    assert Condition(rival_cpus=1.0).share(0.4, 1) == 0.5
    assert Condition(rival_cpus=2.0).share(4.0, 4) == pytest.approx(4 / 6)
    assert Condition(rival_cpus=2.0).share(4.0, 1) == 0.5
    assert Condition(running=False).share(0.4, 1) == 0.0


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"speed": "core"}, "was held to the reference core"), ({"enforcement": "simulated"}, "is a simulation")],
)
def test_runs_that_tell_nothing_of_a_core_make_no_reference(changes: dict[str, Any], said: str) -> None:
    records = [
        msgspec.structs.replace(each, **changes) if isinstance(each, RunStarted) else each
        for each in Synthetic().records
    ]
    with pytest.raises(UsageError, match=said):
        record("x", [sort(records)], {}, {})


# ---- who was late, who did not hold ----


def held_records(
    late_s: float | None = 0.0, early_s: float | None = 0.0, said_s: float = 0.0, fleet: dict[str, Speeds] = FLEET
) -> list[Record]:
    """A run of one round of which every device kept a reference's time."""
    found: list[Record] = []
    for each in Synthetic(fleet, rounds=1, facts=True).records:
        if isinstance(each, UpdateReceived):
            report = msgspec.structs.replace(each.report, reference_s={"recorded": 1.0}, late_s=said_s)
            each = msgspec.structs.replace(each, report=report)
        if isinstance(each, DeviceDone) and each.device == "weak":
            each = msgspec.structs.replace(each, late_s=late_s, early_s=early_s)
        if isinstance(each, RunStarted):
            each = msgspec.structs.replace(each, speed="core", calibrated=True)
        found.append(each)
    return found


@pytest.mark.parametrize(
    ("late_s", "early_s", "said_s", "calibrated"),
    [
        (0.0, 0.0, 0.0, True),
        (0.010, 0.0, 0.0, True),
        (0.1, 0.0, 0.0, False),  # whatever it says itself
        (0.0, 0.1, 0.0, False),
        (0.0, 0.010, 0.0, True),
        (None, None, 0.1, False),  # not judged
    ],
)
def test_who_was_late_or_early_makes_a_run_uncalibrated(
    late_s: float | None, early_s: float | None, said_s: float, calibrated: bool
) -> None:
    summary = summarise(held_records(late_s, early_s, said_s))
    assert summary.calibrated is calibrated
    assert summary.late_rounds == (0 if calibrated or early_s else 1)
    assert summary.early_s == ({"weak": pytest.approx(0.1)} if early_s == 0.1 else {})
    assert summary.reference_s == {"recorded": 3.0}
    (row,) = summary.rounds
    assert row.late_s == pytest.approx(late_s if late_s is not None else said_s)
    assert row.orchestrator_share is not None
    assert 0 < row.orchestrator_share < 0.1
    assert summary.orchestrator_share_mean == pytest.approx(row.orchestrator_share)


def test_a_comparison_names_who_did_not_hold() -> None:
    notes = compare([summarise(held_records(early_s=0.1))]).notes
    assert any("weak did not wait long enough: it was up to 100 ms faster" in note for note in notes)


@pytest.mark.parametrize("on_path", [True, False])
def test_a_late_server_makes_a_round_late_where_it_is_on_the_path(on_path: bool) -> None:
    """On it, it reads the weights of the slowest device's half for 0.9 s after the update."""
    spent = Spent(0.01, 8, {"recorded": 0.5}, late_s=0.2)
    fleet = FLEET | {"weak": msgspec.structs.replace(WEAK, server=900 if on_path else 0)}
    records, ends = list[Record](), dict[type, int]()
    for each in held_records(fleet=fleet):
        records.append(msgspec.structs.replace(each, spent=spent) if isinstance(each, ServerStep) else each)
        if isinstance(each, UpdateReceived | DeviceDone) and each.device == "weak":
            ends[type(each)] = each.at_ns
    if on_path:
        records.append(HalfWork(ends[UpdateReceived], ends[DeviceDone], 0, "read", ("weak",), spent))
    summary = summarise(sorted(records, key=lambda each: isinstance(each, RunFinished)))
    pieces = sum(isinstance(each, ServerStep | HalfWork) for each in records)
    assert summary.reference_s == {"recorded": pytest.approx(3.0 + 0.5 * pieces)}
    (row,) = summary.rounds
    assert row.round_bounds is not None
    assert any(part.what in ("server", "turn") for part in row.round_bounds.parts) is on_path
    assert row.late_s == (0.2 if on_path else 0.0)


# ---- the speed that a fleet is to have ----

FLEET_FILE = "name: two\nbackend: local\nspeed: {speed}\ndevices: [{{profile: cpu1}}, {{profile: cpu0.2}}]\n"


def wanted(folder: Path, speed: str = "reference x86-sse41", **changes: Any) -> FleetSpec:
    (folder / "fleet.yaml").write_text(FLEET_FILE.format(speed=speed))
    return msgspec.structs.replace(load_fleet(folder / "fleet.yaml"), **changes)


def test_a_fleet_at_the_speed_of_its_host_stays_as_it_is(tmp_path: Path) -> None:
    spec = wanted(tmp_path, "host")
    assert at_wanted_speed(spec) is spec
    assert kept_speed(msgspec.structs.replace(spec, server_cpus=2.0), {}).server is None


def test_the_demand_has_a_margin_and_the_index_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.runs.speed.loop_times", lambda: LoopTimes(0.004, 0.0, 0.0))
    spec = wanted(tmp_path)
    speed = at_wanted_speed(spec).speed
    index_s = load_reference("x86-sse41").index_s
    assert speed.index == pytest.approx(index_s / 0.004)
    assert speed.demand == pytest.approx(MARGIN * 0.004 / index_s)
    assert speed.ceiling("x") == pytest.approx(UNMEASURED * speed.demand)
    assert at_wanted_speed(spec).cpus == pytest.approx(1.2 * speed.demand)


def test_what_cannot_be_held_is_refused(tmp_path: Path) -> None:
    spec = wanted(tmp_path)
    board = msgspec.structs.replace(spec.devices[0], profile=unlimited(spec.devices[0].profile), board="pi")
    gpu = msgspec.structs.replace(spec.devices[0], accelerator="cuda")
    for device, said in ((board, "have no limits"), (gpu, "train on a GPU")):
        with pytest.raises(UsageError, match=said):
            at_wanted_speed(msgspec.structs.replace(spec, devices=(device,)))
    with pytest.raises(UsageError, match="no reference 'nowhere'"):
        at_wanted_speed(wanted(tmp_path, "reference nowhere"))


@pytest.mark.parametrize(("cpus", "slots", "each"), [(0.3, 1, 0.3), (1.0, 1, 1.0), (2.5, 2, 1.0), (None, 1, 1.0)])
def test_a_server_has_a_slot_for_each_whole_cpu_before_dilation(
    cpus: float | None, slots: int, each: float, tmp_path: Path
) -> None:
    spec = wanted(tmp_path, server_cpus=cpus)
    assert (spec.server_slots, spec.slot_cpus) == (slots, each)


def test_a_server_is_held_to_the_reference_of_its_fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.runs.speed.loop_times", lambda: LoopTimes(0.004, 0.0, 0.0))
    spec = at_wanted_speed(wanted(tmp_path, server_cpus=2.0))
    held_to = kept_speed(spec, {}).server
    assert held_to is not None
    assert held_to.index == spec.speed.index
    optimizer = Optimizer("adam")
    demo = Assignment("a", {"name": "resnet-tiny"}, 10, (1, 8, 8), 7, "head", batch_size=32, optimizer=optimizer)
    costs = held_to.costs("dtfl", demo)
    known = {kind for kind, cost in costs.items() if cost.origin == "recorded"}
    assert known == {"make", "read", "first step", "step"}
    assert held_to.costs("sfl", demo)["step"].origin == "layers"
    assert kept_speed(msgspec.structs.replace(spec, server_cpus=None), {}).server is None
