"""The figures of summary.json against a run whose figures are known."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgebed.errors import UsageError
from orchestrator.records import types as t
from orchestrator.records.account import load_summary, summarise, write_summary
from orchestrator.records.compare.comparison import compare
from orchestrator.records.live.summing import percentile
from tests.summaries import changed, summarised
from tests.synthetic import BATCHES, FEATURES, FRAMES, MS, TASK, WEIGHTS, Synthetic
from tests.unit._runs import keep, resumed, throttle

DOCS = Path(__file__).parents[2] / "docs" / "records.md"


def test_the_time_axis_adds_up_rounds_without_evaluation() -> None:
    summary = summarised(Synthetic().records)
    assert summary["rounds"] == 4
    assert summary["round_s"] == pytest.approx([1.5] * 4)  # 5 plan, 1470 weakest device, 5, 20 merge
    assert summary["elapsed_s"] == pytest.approx([1.5, 3.0, 4.5, 6.0])
    assert summary["time_to_target_s"] == pytest.approx(5.625)  # 0.75 between 0.6 and 0.8
    assert summary["accuracy"] == pytest.approx([0.2, 0.4, 0.6, 0.8])


def test_every_time_is_divided_by_the_dilation_and_nothing_else_is() -> None:
    plain, dilated = summarised(Synthetic().records), summarised(Synthetic(dilation=4.0).records)
    for name, value in plain.items():
        if name.endswith(("_s", "_s_median", "_s_p95")) or name == "what_if":
            assert dilated[name] == _quarter(value), name  # exact: 4 is a power of two
        elif name not in ("dilation", "server_note", "threads_note"):
            assert dilated[name] == value, name


def _quarter(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _quarter(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_quarter(inner) for inner in value]
    return value if value is None or isinstance(value, str) else value / 4


def test_the_test_part_s_word_on_the_last_weights() -> None:
    records = Synthetic().records
    assert summarised(records)["test_accuracy"] is None
    said = t.FinalTest(records[-1].at_ns, 3, 0.77, 0.9, 0.1)
    summary = summarised([*records[:-1], said, records[-1]])
    assert (summary["test_accuracy"], summary["final_accuracy"]) == (0.77, pytest.approx(0.8))


def test_target_not_reached_is_null() -> None:
    assert summarised(Synthetic(target=0.99).records)["time_to_target_s"] is None


def test_bytes_count_uploads_updates_tasks_and_replies() -> None:
    records = Synthetic().records
    records.append(t.ReplyDelivered(0, 0, 1, "weak", 0, 77))
    summary = summarised(records)
    assert summary["bytes_up"]["weak"] == 4 * (BATCHES * FEATURES + WEIGHTS)
    assert summary["bytes_down"] == dict.fromkeys(("middle", "strong"), 4 * (TASK + FRAMES)) | {
        "weak": 4 * (TASK + FRAMES) + 77
    }


def test_a_task_counts_only_where_it_arrived_and_by_its_body_if_its_frames_were_not_counted() -> None:
    records: list[t.Record] = []
    for record in Synthetic().records:
        if isinstance(record, t.TaskDelivered) and record.device != "strong":
            if record.device == "weak" and record.round == 1:
                continue  # never there
            record = msgspec.structs.replace(record, bytes=0) if record.device == "middle" else record
        records.append(record)
    expected = {"weak": 3 * (TASK + FRAMES), "middle": 4 * TASK, "strong": 4 * (TASK + FRAMES)}
    assert summarised(records)["bytes_down"] == expected


def test_throttled_share_is_of_the_own_work_and_null_where_none_was_reported() -> None:
    records = throttle(throttle(resumed(), "weak", 0.75), "middle", 1.9)  # two threads, both stopped
    assert summarised(records)["throttled_share"] == {"weak": pytest.approx(0.75), "middle": 1.0, "strong": None}
    idle = [r for r in records if not isinstance(r, t.DevicePhases)]
    assert summarised(idle)["throttled_share"] == dict.fromkeys(("weak", "middle", "strong"))


def test_idle_share_is_of_the_rounds_time_and_without_being_away() -> None:
    summary = summarised(Synthetic().records)
    # weak: plan 5, server 30, then 5 and merge 20, of 1500 ms
    assert summary["idle_share"]["weak"] == pytest.approx(60 / 1500)
    assert summary["idle_share"]["strong"] > 0.6
    records = Synthetic().records
    gone = [r for r in records if getattr(r, "device", "") != "strong"]
    assert summarised(gone)["idle_share"]["strong"] is None


def test_a_lost_device_has_no_actual_time_and_is_counted() -> None:
    summary = summarised(Synthetic(lost=(1, "middle")).records)
    assert [value is None for value in summary["actual_s"]["middle"]] == [False, True, False, False]
    assert summary["devices_left_out"] == {"lost": 1}
    assert summary["merged"] == [3, 2, 3, 3]
    assert sum(summary["bytes"]) == summary["bytes_up_total"] + summary["bytes_down_total"]
    assert summary["events"] == 3
    assert summary["timeline_residual_max"] < 1e-6


def test_a_round_that_was_not_finished_does_not_count() -> None:
    records = Synthetic().records
    records = [r for r in records if not (isinstance(r, t.RoundFinished | t.Evaluated) and r.round == 3)]
    summary = summarised(records)
    assert summary["rounds"] == len(summary["accuracy"]) == len(summary["actual_s"]["weak"]) == 3


def test_rounds_done_again_after_a_resume_count_once() -> None:
    first, second = Synthetic(rounds=3, finish=False), Synthetic(rounds=2, first_round=2)
    summary = summarised(first.records + second.records)
    assert summary["rounds"] == 4
    assert summary["resumed"] == 1
    assert summary["timeline_residual_max"] < 1e-6


def test_every_stretch_is_divided_by_its_own_dilation() -> None:
    plain, summary = summarised(resumed((1.0, 1.0))), summarised(resumed((2.0, 8.0)))
    for name in ("round_s", "straggler_gaps_s"):
        assert summary[name] == _by_stretch(plain[name]), name
    for name in ("predicted_s", "actual_s"):
        assert summary[name]["weak"] == _by_stretch(plain[name]["weak"]), name
    assert summary["elapsed_s"][-1] == pytest.approx(summary["total_s"]) == pytest.approx(1.5 + 0.375)
    assert summary["phase_s"]["weak"]["compute"] == pytest.approx(1.2 + 0.3)  # 3 batches of 400 ms a round
    assert summary["dilation"] == 8.0


def _by_stretch(values: list[float]) -> list[float]:
    assert len(values) == 4
    return [value / dilation for value, dilation in zip(values, (2.0, 2.0, 8.0, 8.0), strict=True)]


@pytest.mark.parametrize("kinds", [("kernel", "software"), ("software", "kernel"), ("software", "docker")])
def test_limits_count_as_held_by_the_weakest(kinds: tuple[str, str]) -> None:
    first, *rest = resumed(enforcement=kinds[1])
    assert isinstance(first, t.RunStarted)
    summary = summarised([msgspec.structs.replace(first, enforcement=kinds[0]), *rest])
    assert summary["enforcement"] == "software"


def test_a_run_is_calibrated_only_if_every_stretch_was() -> None:
    first, *rest = resumed()
    assert isinstance(first, t.RunStarted)
    assert summarised([first, *rest])["calibrated"] is True
    assert summarised([msgspec.structs.replace(first, calibrated=False), *rest])["calibrated"] is False
    assert summarised(resumed(calibrated=False))["calibrated"] is False


def test_the_state_of_the_fleet_at_the_start_is_no_event() -> None:
    records = Synthetic().records
    began = records[0].at_ns
    for index, record in enumerate(records):
        if isinstance(record, t.DeviceJoined):
            records[index] = msgspec.structs.replace(record, at_ns=began - 9 * MS, again=True)
    left = t.DeviceLeft(began - MS, "gone", "its process ended")
    joined = t.DeviceJoined(began - 2 * MS, "gone", "gone#1", False)
    summary = summarised([records[0], joined, left, *records[1:]])
    assert summary["events"] == 0
    assert summary["idle_share"]["weak"] == pytest.approx(60 / 1500)
    assert set(summary["phase_s"]["gone"]) == {"offline"}  # but it still says who is there


def test_a_diverged_loss_is_null() -> None:
    records = [
        msgspec.structs.replace(r, loss=math.nan) if isinstance(r, t.Evaluated) else r for r in Synthetic().records
    ]
    assert summarised(records)["loss"] == [None] * 4


def test_a_run_without_a_round_still_has_a_summary() -> None:
    summary = summarised(Synthetic(rounds=0).records)
    assert summary["rounds"] == 0
    assert summary["round_s_median"] is None
    assert summary["timeline_residual_max"] is None


@pytest.mark.parametrize("records", [[], Synthetic().records[1:3]])
def test_records_without_a_beginning_are_refused(records: list[t.Record]) -> None:
    with pytest.raises(UsageError) as caught:
        summarised(records)
    assert caught.value.hint


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_percentile_is_a_value_that_the_share_does_not_exceed(values: list[float]) -> None:
    found = percentile(values, 0.95)
    assert found in values
    assert sum(value <= found for value in values) >= 0.95 * len(values)


def test_files_and_what_is_read_where(tmp_path: Path) -> None:
    folder = keep(tmp_path / "run", Synthetic().records)
    written = write_summary(folder)
    assert load_summary(folder) == written
    assert written.as_dict() == msgspec.json.decode((folder / "summary.json").read_bytes())
    assert len(msgspec.json.decode((folder / "calibration.json").read_bytes())) == 6
    (folder / "summary.json").write_text("{torn")
    assert load_summary(folder) == written
    assert not list(folder.glob("*.part"))
    with pytest.raises(UsageError):
        load_summary(tmp_path)


ODD = [None, -1, 1.5, "x", [], {}, [None], [[]], {"a": None}, {"a": [None]}, {"a": {"b": 3}}, 10**9, 10**30]


@pytest.mark.parametrize("name", sorted(summarised(Synthetic(rounds=2).records)))
def test_a_damaged_summary_is_made_again_from_the_records(name: str, tmp_path: Path) -> None:
    """Whatever one figure is: it is another good one, or the file is not used. Nothing else is raised."""
    folder = keep(tmp_path / "run", Synthetic(rounds=2).records)
    written = write_summary(folder)
    for value in ODD:
        (folder / "summary.json").write_text(json.dumps(written.as_dict() | {name: value}))
        loaded = load_summary(folder)
        assert len(loaded.rounds) == 2
        assert loaded == written or name not in ("rounds", "number", "round_s", "elapsed_s")


FEW = '{"rounds": 2, "number": [1, 2], "nodes": {"load": {}}}'


@pytest.mark.parametrize("text", ["[" * 100_000, '{"rounds": 100000000}', FEW, "3"])
def test_a_file_that_is_no_summary_costs_nothing(text: str, tmp_path: Path) -> None:
    folder = keep(tmp_path / "run", Synthetic(rounds=2).records)
    written = write_summary(folder)
    (folder / "summary.json").write_text(text)
    assert load_summary(folder) == written


def test_devices_that_only_records_name_are_counted() -> None:
    """The fleet of the records has no device of this name, or the round did not draw it."""
    made = Synthetic(rounds=2)
    fleet = made.records[0]
    assert isinstance(fleet, t.RunStarted)
    known = msgspec.structs.replace(fleet, devices=tuple(each for each in fleet.devices if each.name != "weak"))
    expected, found = summarised(made.records), summarised([known, *made.records[1:]])
    for name in ("bytes_up", "bytes_down", "phase_s", "bytes_up_total", "bytes", "actual_s", "cut"):
        assert found[name] == expected[name], name


def test_work_that_was_left_out_is_counted_by_how_over_all_rounds() -> None:
    records = Synthetic(rounds=4, lost=(1, "middle")).records
    at_ns = next(r.at_ns for r in records if isinstance(r, t.RoundFinished) and r.round == 3)
    more = [t.DeviceOut(at_ns, 3, "weak", "lost", "gone"), t.DeviceOut(at_ns, 3, "strong", "late", "late")]
    assert summarised([*records[:-1], *more, records[-1]])["devices_left_out"] == {"lost": 2, "late": 1}


def test_rounds_of_no_length_have_no_shares() -> None:
    records = [
        msgspec.structs.replace(r, seconds=0.0) if isinstance(r, t.RoundFinished) else r
        for r in Synthetic(facts=True).records
    ]
    assert summarised(records)["wait_share_mean"] == {}


def test_every_name_and_every_record_is_documented() -> None:
    text = DOCS.read_text(encoding="utf-8")
    names = set(summarised(Synthetic().records)) | {kind.__struct_config__.tag for kind in t.Record.__args__}
    assert [name for name in sorted(names) if f"`{name}`" not in text] == []


# ---- comparison ----


def test_speed_up_refers_to_the_last_run() -> None:
    quick, slow = summarise(Synthetic(dilation=2.0).records), summarise(Synthetic().records)
    rows = compare([quick, slow]).rows
    assert [row["speed_up"] for row in rows] == pytest.approx([2.0, 1.0])
    never = summarise(Synthetic(target=0.99).records)
    assert [row["speed_up"] for row in compare([quick, never]).rows] == [None, None]


def test_notes_say_what_makes_figures_doubtful() -> None:
    fine = summarise(Synthetic().records)
    assert compare([fine, fine]).notes == []
    doubtful = changed(fine, enforcement="software", calibrated=False, timeline_residual_max=0.3, dilation=3.0)
    notes = " ".join(compare([doubtful, fine]).notes)
    for word in ("limits held by", "dilation", "not calibrated", "30.0%", "agents limited themselves"):
        assert word in notes


def test_a_note_of_many_runs_is_one_line() -> None:
    costs = "flops: times and bytes of vgg16 with 500 samples per device (as_if), learning by resnet8"
    one = changed(summarise(Synthetic().records), enforcement="simulated", costs=costs)
    runs = [changed(one, run=f"run-{number}") for number in range(15)]
    told = f"simulated: no device ran; times come from a cost model ({costs})"
    assert compare(runs).notes == [f"15 runs: {told}"]
    runs[2:] = [changed(run, costs="") for run in runs[2:]]
    assert f"run-0, run-1: {told}" in compare(runs).notes
    assert compare(runs[:1]).notes == [f"run-0: {told}"]


def test_a_gap_in_the_window_is_seen_in_the_summary() -> None:
    records = [
        msgspec.structs.replace(r, phases=r.phases[:-1]) if isinstance(r, t.DevicePhases) and i > 40 else r
        for i, r in enumerate(Synthetic().records)
    ]
    assert summarised(records)["timeline_residual_max"] >= 50 * MS / 1.6e9
