"""Tables of a run against its summary, and against a run whose figures are known."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from orchestrator.analysis import tables
from orchestrator.analysis.time_axis import TimeAxis
from orchestrator.records.run_index import RunFacts, sort
from orchestrator.records.summary import summarise_facts
from tests.synthetic import BATCHES, FEATURES, MS, STRONG, WEAK, WEIGHTS, Synthetic, overlapping

DOCS = Path(__file__).parents[2] / "docs" / "python.md"
LANES = {"fast": ({"a": STRONG, "b": STRONG}, 6), "slow": ({"c": WEAK}, 2)}


def plain() -> RunFacts:
    return sort(Synthetic(dilation=4.0).records)


def one_lost() -> RunFacts:
    return sort(Synthetic(lost=(1, "middle"), drawn={2: ("weak", "strong")}, dilation=2.0).records)


def lanes() -> RunFacts:
    return sort(overlapping(LANES))


def resumed() -> RunFacts:
    """Killed in its third round, and gone on with from there by an orchestrator whose clock is the same by chance."""
    first = Synthetic(rounds=3, finish=False, dilation=4.0).records
    return sort([*first, *Synthetic(rounds=2, first_round=2, dilation=2.0).records])


RUNS = [plain, one_lost, lanes, resumed]


@pytest.mark.parametrize("make", RUNS)
def test_phases_add_up_to_the_summary_s(make) -> None:  # type: ignore[no-untyped-def]
    run = make()
    summary = summarise_facts(run)
    sums = tables.phases_table(run).groupby(["device", "phase"])["duration_s"].sum()
    expected = {(device, name): s for device, by_name in summary["phase_s"].items() for name, s in by_name.items()}
    assert sums.to_dict() == pytest.approx(expected)


@pytest.mark.parametrize("make", RUNS)
def test_the_phases_of_a_device_follow_one_another_on_one_axis(make) -> None:  # type: ignore[no-untyped-def]
    """Although the clocks of the devices are far apart, and each session has another."""
    run = make()
    phases = tables.phases_table(run)
    for _, own in phases.groupby(["round", "device"]):
        ends = own["start_s"] + own["duration_s"]
        assert own["start_s"].iloc[1:].tolist() == pytest.approx(ends.iloc[:-1].tolist())
    rounds = tables.rounds_table(run, summarise_facts(run)).set_index("round")
    starts = phases.groupby("round")["start_s"].min()
    assert starts.to_dict() == pytest.approx(rounds["start_s"].to_dict())


@pytest.mark.parametrize("make", RUNS)
def test_rounds_are_those_of_the_summary(make) -> None:  # type: ignore[no-untyped-def]
    run = make()
    summary = summarise_facts(run)
    table = tables.rounds_table(run, summary)
    for name, key in tables.FROM_SUMMARY.items():
        values = [None if pd.isna(value) else value for value in table[name]]
        assert values == summary[key], name
    behind = table["straggler_behind_cpu_s"].dropna().tolist()
    assert behind == pytest.approx([row["cpu"] for row in summary["straggler_behind_s"] if row])


@pytest.mark.parametrize("make", RUNS)
def test_bytes_and_seconds_of_assignments_add_up_to_the_summary_s(make) -> None:  # type: ignore[no-untyped-def]
    run = make()
    summary = summarise_facts(run)
    table = tables.assignments_table(run)
    for device, own in table.groupby("device"):
        actual = [s for s in summary["actual_s"][device] if s is not None]
        assert sorted(own["duration_s"].dropna()) == pytest.approx(sorted(actual))
        assert own["bytes_up"].sum() == tables.uploads_table(run).query("device == @device")["bytes"].sum()
    assert table.groupby("round")[["bytes_up", "bytes_down"]].sum().sum(axis=1).to_dict() == dict(
        zip(summary["number"], summary["bytes"], strict=True)
    )


def test_a_known_run_in_the_fleet_file_s_units_whatever_its_dilation() -> None:
    run = plain()
    summary = summarise_facts(run)
    assert tables.rounds_table(run, summary)["duration_s"].tolist() == pytest.approx([1.5 / 4] * 4)
    assert tables.rounds_table(run, summary)["start_s"].tolist() == pytest.approx(
        [(at - Synthetic().starts[0]) / MS / 4000 for at in Synthetic().starts]
    )
    devices = tables.devices_table(run, summary).set_index("device")
    assert devices.loc["weak", ["cpus", "uplink_mbit_s", "samples", "classes"]].tolist() == [0.5, 30.0, 100, 2]
    assert devices["straggler_rounds"].to_dict() == {"weak": 4, "middle": 0, "strong": 0}
    assignments = tables.assignments_table(run)
    assert set(assignments["cpus"]) == {2.0}  # 0.5 CPUs were set, with a dilation of 4
    assert set(assignments["uplink_mbit_s"]) == {120.0}
    uploads = tables.uploads_table(run)
    assert uploads["kind"].value_counts().to_dict() == {"features": 4 * 3 * BATCHES, "update": 4 * 3}
    assert set(uploads.query("kind == 'features'")["bytes"]) == {FEATURES}
    assert set(uploads.query("kind == 'update'")["bytes"]) == {WEIGHTS}
    assert set(uploads.query("kind == 'features'")["duration_s"].round(6)) == {0.0025}


def test_a_lost_device_is_in_faults_and_has_no_duration() -> None:
    run = one_lost()
    faults = tables.faults_table(run)
    assert faults[["event", "kind"]].values.tolist() == [
        ["device_left", ""],
        ["device_out", "lost"],
        ["device_joined", ""],
    ]
    assert faults["round"].dropna().tolist() == [2]
    assert set(faults["device"]) == {"middle"}
    lost = tables.assignments_table(run).query("round == 2 and device == 'middle'").iloc[0]
    assert (lost["outcome"], pd.isna(lost["duration_s"]), pd.isna(lost["samples"])) == ("lost", True, True)
    assert faults["start_s"].iloc[1] > lost["start_s"]


def test_a_session_begins_where_the_one_before_it_ended() -> None:
    run = resumed()
    first, second = run.sessions
    axis = TimeAxis(run)
    assert axis.seconds(0, first.begin_ns) == 0.0
    assert axis.seconds(1, second.begin_ns) == pytest.approx(axis.seconds(0, first.end_ns))
    assert axis.seconds(1, second.begin_ns + 2 * 10**9) == pytest.approx(axis.seconds(1, second.begin_ns) + 1.0)


def test_the_curve_adds_up_bytes_and_leaves_out_rounds_without_evaluation() -> None:
    run = plain()
    table = tables.rounds_table(run, summarise_facts(run))
    table.loc[1, "accuracy"] = float("nan")
    curve = tables.curve_table(table)
    assert curve["round"].tolist() == [1, 3, 4]
    assert curve["total_bytes"].tolist() == [table["bytes"][0], table["bytes"][:3].sum(), table["bytes"].sum()]


def test_a_run_in_which_no_round_finished_has_empty_tables_of_the_same_columns() -> None:
    begun = Synthetic(rounds=1).records
    run = sort(begun[: next(i for i, r in enumerate(begun) if type(r).__name__ == "RoundStarted")])
    full = plain()
    for table in (tables.phases_table, tables.assignments_table, tables.uploads_table, tables.faults_table):
        assert len(table(run)) == 0
        assert table(run).dtypes.to_dict() == table(full).dtypes.to_dict()
    assert len(tables.rounds_table(run, summarise_facts(run))) == 0


def test_every_column_is_documented() -> None:
    run = one_lost()
    summary = summarise_facts(run)
    text = DOCS.read_text("utf-8")
    made = (
        tables.rounds_table(run, summary),
        tables.phases_table(run),
        tables.devices_table(run, summary),
        tables.assignments_table(run),
        tables.uploads_table(run),
        tables.faults_table(run),
        tables.curve_table(tables.rounds_table(run, summary)),
    )
    named = {
        name for table in made for name in table.columns if not name.startswith(("straggler_behind_", "bound_by_"))
    }
    assert not {name for name in named if not re.search(rf"`{name}`", text)}
