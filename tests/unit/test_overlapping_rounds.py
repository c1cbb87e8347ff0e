"""Rounds of an asynchronous method overlap: every second still has one name, and time is the wall clock's."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from orchestrator.records import types as t
from orchestrator.records.run_index import sort
from orchestrator.records.timeline.timeline import RoundTimeline, timelines
from tests.summaries import summarised
from tests.synthetic import BATCHES, MIDDLE, MS, STRONG, WEAK, Speed, Synthetic, overlapping

FAST, SLOW = {"a": STRONG, "b": Speed(compute=150)}, {"c": WEAK, "d": MIDDLE}
RUN = overlapping({"0": (FAST, 5), "1": (SLOW, 2)}, dilation=2.0)


def rounds(records: list[t.Record]) -> list[RoundTimeline]:
    return list(timelines(sort(records)))


def test_rounds_do_overlap() -> None:
    found = rounds(RUN)
    assert len(found) == 7
    assert any(a.facts.end_ns > b.facts.start_ns for a, b in pairwise(found))


def test_only_the_devices_of_a_lane_have_a_window_in_its_rounds() -> None:
    for timeline in rounds(RUN):
        assert set(timeline.devices) == set(FAST if timeline.facts.lane == "0" else SLOW)


def test_windows_of_a_device_follow_one_another_to_the_end_of_the_run() -> None:
    end = next(r.at_ns for r in RUN if isinstance(r, t.RunFinished))
    for device in (*FAST, *SLOW):
        segments = [r.devices[device].segments for r in rounds(RUN) if device in r.devices]
        flat = [segment for one in segments for segment in one]
        assert all(a.end_ns == b.start_ns for a, b in pairwise(flat))
        assert flat[-1].end_ns == end


def test_every_second_has_a_name_and_only_one() -> None:
    found = rounds(RUN)
    assert max(device.residual for timeline in found for device in timeline.devices.values()) < 1e-6
    sums = summarised(RUN)["phase_s"]
    for device, speed in (FAST | SLOW).items():
        count = 5 if device in FAST else 2
        assert sums[device]["compute"] == pytest.approx(count * BATCHES * speed.compute / 1e3 / 2)


def test_the_time_axis_is_the_wall_clock_from_the_first_round_on() -> None:
    summary = summarised(RUN)
    began = min(r.at_ns for r in RUN if isinstance(r, t.RoundStarted))
    finished = [r for r in RUN if isinstance(r, t.RoundFinished)]
    assert summary["elapsed_s"] == pytest.approx([(r.at_ns - began) / 1e9 / 2 for r in finished])
    assert summary["elapsed_s"] == sorted(summary["elapsed_s"])
    assert summary["total_s"] == summary["elapsed_s"][-1] < sum(summary["round_s"])
    assert summary["number"] == [r.round + 1 for r in finished]
    assert summary["lane"] == [{"a": "0"}.get(r.merged[0], "1") for r in finished]


def test_the_first_evaluation_in_time_reaches_the_target() -> None:
    records = [
        msgspec.structs.replace(r, accuracy=0.9 if r.round == 3 else 0.1) if isinstance(r, t.Evaluated) else r
        for r in RUN
    ]
    summary = summarised(records)
    index = summary["number"].index(4)
    before_s, at_s = summary["elapsed_s"][index - 1 : index + 1]
    share = (summary["target_accuracy"] - 0.1) / (0.9 - 0.1)
    assert summary["time_to_target_s"] == pytest.approx(before_s + share * (at_s - before_s))


def test_idle_shares_are_of_the_device_s_own_windows() -> None:
    alone = summarised(Synthetic(FAST, 5, dilation=2.0).records)
    assert summarised(RUN)["idle_share"]["a"] == pytest.approx(alone["idle_share"]["a"])


def test_stragglers_are_sought_within_a_lane() -> None:
    summary = summarised(RUN)
    assert {device for device, lane in zip(summary["straggler"], summary["lane"], strict=True) if lane == "0"} == {"b"}
    assert {device for device, lane in zip(summary["straggler"], summary["lane"], strict=True) if lane == "1"} == {"c"}


def test_a_device_that_changes_its_lane_leaves_the_window_of_the_old_one() -> None:
    """`b` is drawn by lane 1 from its second round on."""
    moved = [r for r in RUN if isinstance(r, t.RoundStarted) and r.lane == "1"][1]
    records: list[t.Record] = []
    for r in RUN:
        if isinstance(r, t.RoundStarted) and r.at_ns >= moved.at_ns:
            kept = tuple(d for d in r.devices if d != "b")
            r = msgspec.structs.replace(r, devices=(*kept, "b") if r.lane == "1" else kept)
        records.append(r)
    windows = [
        (timeline.facts.start_ns, timeline.facts.window_end("b"), timeline.facts.lane)
        for timeline in rounds(records)
        if "b" in timeline.devices
    ]
    assert all(a[1] == b[0] for a, b in pairwise(windows))
    assert windows[-1][2] == "1"
    assert (moved.at_ns, "1") in [(start, lane) for start, _, lane in windows]


def test_a_device_that_no_lane_ever_drew_has_no_window() -> None:
    first, *rest = RUN
    assert isinstance(first, t.RunStarted)
    ghost = msgspec.structs.replace(first.devices[0], name="ghost")
    records = [msgspec.structs.replace(first, devices=(*first.devices, ghost)), *rest]
    assert not any("ghost" in timeline.devices for timeline in rounds(records))
    assert summarised(records)["idle_share"]["ghost"] is None


def test_a_run_resumed_in_the_middle_of_lanes_goes_on_with_the_time() -> None:
    second = [
        msgspec.structs.replace(r, round=r.round + 7) if hasattr(r, "round") else r
        for r in (msgspec.structs.replace(RUN[0], resumed_from=7), *RUN[1:])
    ]
    one, both = summarised(RUN), summarised([*RUN, *second])
    assert both["elapsed_s"] == pytest.approx(one["elapsed_s"] + [one["total_s"] + s for s in one["elapsed_s"]])
    assert both["timeline_residual_max"] < 1e-6


def test_runs_without_lanes_add_up_their_rounds() -> None:
    summary = summarised(Synthetic().records)
    assert summary["lane"] == [""] * 4
    assert summary["total_s"] == pytest.approx(sum(summary["round_s"]))
    assert summary["elapsed_s"][1] * 1e9 > 2 * 500 * MS
