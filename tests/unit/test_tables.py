"""Tables of a run against its summary, and against a run whose figures are known."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from orchestrator.analysis import tables
from orchestrator.analysis.tables import TimeAxis
from orchestrator.records.account import explained_summary, whole
from orchestrator.records.live.run_state import RunState
from tests.synthetic import BATCHES, FEATURES, MS, STRONG, WEAK, WEIGHTS, Synthetic, overlapping

DOCS = Path(__file__).parents[2] / "docs" / "python.md"
LANES = {"fast": ({"a": STRONG, "b": STRONG}, 6), "slow": ({"c": WEAK}, 2)}


def plain() -> RunState:
    return whole(Synthetic(dilation=4.0).records)


def one_lost() -> RunState:
    return whole(Synthetic(lost=(1, "middle"), drawn={2: ("weak", "strong")}, dilation=2.0).records)


def lanes() -> RunState:
    return whole(overlapping(LANES))


def resumed() -> RunState:
    """Killed in its third round, and gone on with from there by an orchestrator whose clock is the same by chance."""
    first = Synthetic(rounds=3, finish=False, dilation=4.0).records
    return whole([*first, *Synthetic(rounds=2, first_round=2, dilation=2.0).records])


RUNS = [plain, one_lost, lanes, resumed]


@pytest.mark.parametrize("make", RUNS)
def test_phases_add_up_to_the_summary_s(make) -> None:  # type: ignore[no-untyped-def]
    state = make()
    run = state.run
    summary = explained_summary(state)
    sums = tables.phases_table(run).groupby(["device", "phase"])["duration_s"].sum()
    expected = {(device, name): s for device, own in summary.devices.items() for name, s in own.phase_s.items()}
    assert sums.to_dict() == pytest.approx(expected)


@pytest.mark.parametrize("make", RUNS)
def test_the_phases_of_a_device_follow_one_another_on_one_axis(make) -> None:  # type: ignore[no-untyped-def]
    """Although the clocks of the devices are far apart, and each session has another."""
    state = make()
    run = state.run
    phases = tables.phases_table(run)
    for _, own in phases.groupby(["round", "device"]):
        ends = own["start_s"] + own["duration_s"]
        assert own["start_s"].iloc[1:].tolist() == pytest.approx(ends.iloc[:-1].tolist())
    rounds = tables.rounds_table(run, explained_summary(state)).set_index("round")
    starts = phases.groupby("round")["start_s"].min()
    assert starts.to_dict() == pytest.approx(rounds["start_s"].to_dict())


@pytest.mark.parametrize("make", RUNS)
def test_rounds_are_those_of_the_summary(make) -> None:  # type: ignore[no-untyped-def]
    state = make()
    run = state.run
    summary = explained_summary(state)
    table = tables.rounds_table(run, summary)
    for name, of in tables.FROM_SUMMARY.items():
        values = [None if pd.isna(value) else value for value in table[name]]
        assert values == [of(row) for row in summary.rounds], name
    behind = table["straggler_behind_cpu_s"].dropna().tolist()
    assert behind == pytest.approx([row.straggler_behind_s["cpu"] for row in summary.rounds if row.straggler_behind_s])


@pytest.mark.parametrize("make", RUNS)
def test_bytes_and_seconds_of_assignments_add_up_to_the_summary_s(make) -> None:  # type: ignore[no-untyped-def]
    state = make()
    run = state.run
    summary = explained_summary(state)
    table = tables.assignments_table(run, summary)
    for device, own in table.groupby("device"):
        actual = [s for s in summary.devices[str(device)].actual_s if s is not None]
        assert sorted(own["duration_s"].dropna()) == pytest.approx(sorted(actual))
        assert own["bytes_up"].sum() == tables.uploads_table(run).query("device == @device")["bytes"].sum()
    moved = table.groupby("round")[["bytes_up", "bytes_down"]].sum().sum(axis=1).to_dict()
    assert moved == {row.number: row.bytes for row in summary.rounds}


def test_a_known_run_in_the_fleet_file_s_units_whatever_its_dilation() -> None:
    state = plain()
    run = state.run
    summary = explained_summary(state)
    assert tables.rounds_table(run, summary)["duration_s"].tolist() == pytest.approx([1.5 / 4] * 4)
    assert tables.rounds_table(run, summary)["start_s"].tolist() == pytest.approx(
        [(at - Synthetic().starts[0]) / MS / 4000 for at in Synthetic().starts]
    )
    devices = tables.devices_table(run, summary).set_index("device")
    assert devices.loc["weak", ["cpus", "uplink_mbit_s", "samples", "classes"]].tolist() == [0.5, 30.0, 100, 2]
    assert devices["straggler_rounds"].to_dict() == {"weak": 4, "middle": 0, "strong": 0}
    assignments = tables.assignments_table(run, summary)
    assert set(assignments["cpus"]) == {2.0}  # 0.5 CPUs were set, with a dilation of 4
    assert set(assignments["uplink_mbit_s"]) == {120.0}
    uploads = tables.uploads_table(run)
    assert uploads["kind"].value_counts().to_dict() == {"features": 4 * 3 * BATCHES, "update": 4 * 3}
    assert set(uploads.query("kind == 'features'")["bytes"]) == {FEATURES}
    assert set(uploads.query("kind == 'update'")["bytes"]) == {WEIGHTS}
    assert set(uploads.query("kind == 'features'")["duration_s"].round(6)) == {0.0025}


def test_a_lost_device_is_in_faults_and_has_no_duration() -> None:
    state = one_lost()
    run = state.run
    faults = tables.faults_table(run)
    assert faults[["event", "kind"]].values.tolist() == [
        ["device_left", ""],
        ["device_out", "lost"],
        ["device_joined", ""],
    ]
    assert faults["round"].dropna().tolist() == [2]
    assert set(faults["device"]) == {"middle"}
    lost = tables.assignments_table(run, explained_summary(state)).query("round == 2 and device == 'middle'").iloc[0]
    assert (lost["outcome"], pd.isna(lost["duration_s"]), pd.isna(lost["samples"])) == ("lost", True, True)
    assert faults["start_s"].iloc[1] > lost["start_s"]


def test_a_session_begins_where_the_one_before_it_ended() -> None:
    state = resumed()
    run = state.run
    first, second = run.sessions
    axis = TimeAxis(run)
    assert axis.seconds(0, first.begin_ns) == 0.0
    assert axis.seconds(1, second.begin_ns) == pytest.approx(axis.seconds(0, first.end_ns))
    assert axis.seconds(1, second.begin_ns + 2 * 10**9) == pytest.approx(axis.seconds(1, second.begin_ns) + 1.0)


def test_the_curve_adds_up_bytes_and_leaves_out_rounds_without_evaluation() -> None:
    state = plain()
    run = state.run
    table = tables.rounds_table(run, explained_summary(state))
    table.loc[1, "accuracy"] = float("nan")
    curve = tables.curve_table(table)
    assert curve["round"].tolist() == [1, 3, 4]
    assert curve["total_bytes"].tolist() == [table["bytes"][0], table["bytes"][:3].sum(), table["bytes"].sum()]


def test_a_run_in_which_no_round_finished_has_empty_tables_of_the_same_columns() -> None:
    begun = Synthetic(rounds=1).records
    state = whole(begun[: next(i for i, r in enumerate(begun) if type(r).__name__ == "RoundStarted")])
    run = state.run
    full = plain()
    for table in (tables.phases_table, tables.uploads_table, tables.faults_table):
        assert len(table(run)) == 0
        assert table(run).dtypes.to_dict() == table(full.run).dtypes.to_dict()
    empty = tables.assignments_table(run, explained_summary(state))
    assert len(empty) == 0
    assert empty.dtypes.to_dict() == tables.assignments_table(full.run, explained_summary(full)).dtypes.to_dict()
    assert len(tables.rounds_table(run, explained_summary(state))) == 0


def test_every_column_is_documented() -> None:
    state = one_lost()
    run = state.run
    summary = explained_summary(state)
    text = DOCS.read_text("utf-8")
    made = (
        tables.rounds_table(run, summary),
        tables.phases_table(run),
        tables.devices_table(run, summary),
        tables.assignments_table(run, summary),
        tables.uploads_table(run),
        tables.faults_table(run),
        tables.curve_table(tables.rounds_table(run, summary)),
    )
    named = {
        name for table in made for name in table.columns if not name.startswith(("straggler_behind_", "bound_by_"))
    }
    assert not {name for name in named if not re.search(rf"`{name}`", text)}
