"""The trace is a valid one, nested as it should be, and its sums are those of summary.json."""

from __future__ import annotations

import json
import os
import sqlite3
import tempfile
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from orchestrator.records import types as t
from orchestrator.records.run_index import sort
from orchestrator.records.timeline.timeline import timelines
from orchestrator.report.trace import ORCHESTRATOR, TraceFile
from tests.summaries import summarised
from tests.synthetic import BATCHES, FEATURES, FLEET, MIDDLE, STRONG, WEAK, Speed, Synthetic, overlapping
from tests.unit._runs import resumed

LOST = Synthetic(lost=(1, "middle"), dilation=2.5).records
LANES = overlapping({"0": ({"a": STRONG, "b": MIDDLE}, 5), "1": ({"c": WEAK}, 3)}, dilation=2.0)


def trace_of(records: list[t.Record]) -> dict[str, Any]:
    """What the file of a run's trace holds."""
    run = sort(records)
    with tempfile.TemporaryDirectory() as folder:
        file = TraceFile(Path(folder) / "trace.json", run)
        for timeline in timelines(run):
            file.add(timeline)
        file.close()
        assert os.listdir(folder) == ["trace.json"]
        trace: dict[str, Any] = json.loads((Path(folder) / "trace.json").read_text())
        return trace


def events_of(records: list[t.Record]) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = trace_of(records)["traceEvents"]
    return events


def test_the_file_says_what_it_is() -> None:
    assert trace_of(LOST)["otherData"]["dilation"] == 2.5


def test_events_have_what_the_format_asks_for() -> None:
    for event in events_of(LOST):
        assert {"ph", "name", "pid", "tid"} <= set(event)
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] >= 0
        else:
            assert event["ph"] in "MCsf"


def test_every_device_is_a_process_with_a_name() -> None:
    events = events_of(LOST)
    named = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert set(named.values()) == {"orchestrator", *FLEET}
    assert {e["pid"] for e in events} == set(named)


def test_slices_of_one_track_never_overlap() -> None:
    fleet = {f"d{i}": Speed() for i in range(5)}  # alike, so their server steps fall together
    tracks = defaultdict(list)
    for event in events_of(Synthetic(fleet).records):
        if event["ph"] == "X" and event["cat"] not in ("round", "task"):
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert len([tid for pid, tid in tracks if pid == ORCHESTRATOR]) > 3  # rounds, phases, several lanes of steps
    for slices in tracks.values():
        slices.sort()
        assert all(a[1] <= b[0] + 1e-3 for a, b in pairwise(slices))


def test_arrows_lead_from_every_upload_to_its_step() -> None:
    events = events_of(Synthetic().records)
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert set(starts) == set(ends)
    assert len(starts) == 4 * len(FLEET) * BATCHES
    slices = {(e["pid"], e["tid"], e["ts"]) for e in events if e["ph"] == "X"}
    for id, start in starts.items():
        assert start["ts"] <= ends[id]["ts"]
        for end in (start, ends[id]):
            assert (end["pid"], end["tid"], end["ts"]) in slices


def test_stretches_follow_one_another() -> None:
    first, second = Synthetic(rounds=2, finish=False), Synthetic(rounds=2, first_round=2)
    rounds = [e for e in events_of(first.records + second.records) if e.get("cat") == "round"]
    assert [e["name"] for e in rounds] == ["round 1", "round 2", "round 3", "round 4"]
    assert all(a["ts"] + a["dur"] <= b["ts"] for a, b in pairwise(rounds))


def test_every_stretch_has_the_scale_of_its_dilation() -> None:
    rounds = [e for e in events_of(resumed((2.0, 8.0))) if e.get("cat") == "round"]
    assert [e["dur"] for e in rounds] == pytest.approx([rounds[0]["dur"] / d for d in (1, 1, 4, 4)], rel=0.05)
    assert all(a["ts"] + a["dur"] <= b["ts"] for a, b in pairwise(rounds))


def test_a_run_too_large_for_a_viewer_is_thinned_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.report.trace.MOST_EVENTS", 200)
    trace = trace_of(Synthetic(rounds=6).records)
    rounds = [e["name"] for e in trace["traceEvents"] if e.get("cat") == "round"]
    assert 0 < len(rounds) < 6
    assert "th round" in trace["otherData"]["rounds"]


@pytest.mark.parametrize("records", [LOST, LANES, resumed()])
def test_sql_over_the_phases_gives_the_sums_of_the_summary(records: list[t.Record]) -> None:
    base = sqlite3.connect(":memory:")
    base.execute("create table slice (pid int, cat text, name text, dur int)")
    base.execute("create table process (pid int, name text)")
    for event in events_of(records):
        if event["ph"] == "X":
            base.execute("insert into slice values (?, ?, ?, ?)", [event[k] for k in ("pid", "cat", "name", "dur")])
        elif event["name"] == "process_name":
            base.execute("insert into process values (?, ?)", [event["pid"], event["args"]["name"]])
    query = """select process.name, slice.name, sum(dur) / 1e6 from slice join process using (pid)
        where cat = 'phase' and process.name != 'orchestrator' group by 1, 2"""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for device, phase, seconds in base.execute(query):
        found[device][phase] = seconds
    expected = summarised(records)["phase_s"]
    assert set(found) == set(expected)
    for device, sums in expected.items():
        assert found[device] == pytest.approx({k: v for k, v in sums.items() if v > 0}, abs=1e-4)


def test_slices_are_nested_and_never_cross() -> None:
    for records in (LOST, LANES):
        tracks = defaultdict(list)
        for event in events_of(records):
            if event["ph"] == "X":
                tracks[event["pid"], event["tid"]].append((event["ts"], -event["dur"], event["name"], event["cat"]))
        for slices in tracks.values():
            open_: list[int] = []
            for start, minus, _, _ in sorted(slices):
                while open_ and open_[-1] <= start:
                    open_.pop()
                assert not open_ or start - minus <= open_[-1]
                open_.append(start - minus)


def test_every_task_holds_its_phases() -> None:
    events = [e for e in events_of(LOST) if e["ph"] == "X"]
    tasks = [(e["pid"], e["ts"], e["ts"] + e["dur"]) for e in events if e["cat"] == "task"]
    assert len(tasks) == 4 * len(FLEET)
    for event in events:
        if event["cat"] == "phase" and event["name"] in ("download", "compute", "upload_tail"):
            inside = [p == event["pid"] and a <= event["ts"] and event["ts"] + event["dur"] <= b for p, a, b in tasks]
            assert sum(inside) == 1


def test_counters_of_the_cpu_are_shares_of_the_quota() -> None:
    values = [e["args"]["value"] for e in events_of(LOST) if e["name"] == "CPU, share of quota"]
    assert set(values) == {1.0}  # half a CPU used of half a CPU: that is what the synthetic devices report


def test_counters_of_the_links_give_the_bytes() -> None:
    events = events_of(Synthetic(dilation=4.0).records)
    strong = next(e["pid"] for e in events if e["name"] == "process_name" and e["args"]["name"] == "strong")
    curve = [(e["ts"], e["args"]["value"]) for e in events if e["name"] == "uplink, Mbit/s" and e["pid"] == strong]
    assert [value for _, value in curve][-1] == 0
    first = curve[0]
    assert first[1] == pytest.approx(FEATURES * 8 / 10e-3 / 1e6 * 4, abs=1e-3)  # 10 ms, quick as without dilation
    # Curve values are rounded to 1 kbit/s, which the tail (50 ms of 0.8 Mbit/s and more) does not notice much.
    area = sum(value * (b[0] - a[0]) for a, b in pairwise(curve) for value in (a[1],)) / 8 * 1e0
    assert area == pytest.approx(4 * (BATCHES * FEATURES + 5000), rel=0.01)


def test_the_queue_is_never_below_nothing_and_ends_empty() -> None:
    curve = [e["args"]["value"] for e in events_of(LOST) if e["name"] == "uploads waiting"]
    assert min(curve, default=0) >= 0
    assert not curve or curve[-1] == 0


def test_rounds_of_lanes_have_tracks_of_their_own() -> None:
    events = events_of(LANES)
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == ORCHESTRATOR}
    of_round = {names[e["tid"]] for e in events if e.get("cat") == "round"}
    assert of_round == {"rounds of lane 0", "rounds of lane 1"}
