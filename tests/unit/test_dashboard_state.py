"""Records -> state of the page: the figures of `summary.json`, in whatever portions the records arrive."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edgebed.wire.piece_times import Phase
from orchestrator.dashboard.gantt import gantt
from orchestrator.dashboard.run_list import about, spark
from orchestrator.dashboard.tail import RecordTail
from orchestrator.dashboard.view import Cursor, changes, head, history, shown
from orchestrator.records import types as t
from orchestrator.records.account import summarise
from orchestrator.records.compare.curves import curve
from orchestrator.records.compare.page import compared
from orchestrator.records.critical.bound_by import more_words
from orchestrator.records.critical.stragglers import standing_out
from orchestrator.records.host_records import ServerStep
from orchestrator.records.live.reducer import Rewound, reduce
from orchestrator.records.live.run_state import PATIENCE, RunState
from orchestrator.records.live.summing import summary_of
from orchestrator.records.reader import read
from orchestrator.records.run_index import RoundFacts, sort
from orchestrator.records.summary import Summary
from tests import board_run
from tests.synthetic import FLEET, MS, WEAK, WEIGHTS, Speed, Synthetic, overlapping
from tests.unit._runs import folded, keep, resumed, with_host

RECORDED = Path(__file__).parents[1] / "recorded"


def kept_rounds(state: RunState) -> list[RoundFacts]:
    return list(state.session.rounds.values())


def unsettled(state: RunState) -> list[int]:
    return [number for number, indexed in state.rounds.items() if not indexed.settled]


CASES = {
    "plain": Synthetic(),
    "dilated": Synthetic(dilation=2.5),
    "a device is lost": Synthetic(rounds=5, lost=(2, "middle")),
    "not all are drawn": Synthetic(rounds=4, drawn={1: ("weak", "strong"), 2: ("middle",)}),
    "the uplink is slow": Synthetic({**FLEET, "slow": Speed(blocked=900, tail=800)}),
    "the downlink is slow": Synthetic({**FLEET, "slow": Speed(download=1500)}),
    "the server is slow": Synthetic({**FLEET, "slow": Speed(server=2000)}),
}


def figures(summary: Summary) -> dict[str, Any]:
    return dict(msgspec.json.decode(msgspec.json.encode(summary.as_dict())))


MOVED = (
    "phase_s",
    "wait_s",
    "idle_share",
    "idle_share_mean",
    "wait_share_mean",
    "timeline_residual",
    "timeline_residual_max",
)
"""Figures that tell where on the orchestrator's clock a phase ends."""


def close(found: Any, expected: Any, slack: float = 1e-9) -> bool:
    """Equal; seconds and shares to a millionth, those of MOVED to `slack`."""
    if isinstance(expected, dict):
        top = "experiment" in expected
        slacks = {key: slack if not top or key in MOVED else 1e-9 for key in expected}
        return found.keys() == expected.keys() and all(close(found[k], expected[k], slacks[k]) for k in expected)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(close(*pair, slack) for pair in zip(found, expected, strict=True))
    return bool(found == (pytest.approx(expected, rel=1e-6, abs=slack) if isinstance(expected, float) else expected))


KILLED = Synthetic(rounds=5, finish=False).records
WHOLE = {
    **{name: run.records for name, run in CASES.items()},
    "facts": Synthetic(FLEET, facts=True).records,
    "long": Synthetic(rounds=150, accuracy=0.001).records,
    "resumed": [*KILLED, *Synthetic(rounds=3, first_round=3).records],
    "resumed twice": [
        *KILLED,
        *Synthetic(rounds=2, first_round=4, finish=False).records,
        *Synthetic(rounds=3, first_round=4).records,
    ],
    "of two dilations": resumed(),
    "lanes": overlapping({"fast": ({"a": Speed(), "b": Speed()}, 6), "slow": ({"c": WEAK}, 2)}),
    "boards": board_run.records(),
    "a disturbed host": with_host(
        Synthetic(rounds=20, accuracy=0.01).records, {3: {"stolen_s": 0.5}, 9: {"loop_ms": 4.0}}
    ),
    **{path.parent.name: read(path) for path in sorted(RECORDED.glob("*/*/records.jsonl"))},
}


@pytest.mark.parametrize("name", WHOLE)
def test_the_figures_of_a_live_run_are_those_of_its_records_so_far(name: str) -> None:
    """At 20 random places, whatever the portions in which the records came.

    In the recorded run of DTFL a device gets another profile, and its clock is measured again. The fold of all records
    then moves its earlier phases by up to 0.1 ms; rounds that were settled before stay where they were.
    """
    records, chance = WHOLE[name], random.Random(name)
    state, read_so_far = RunState(), 0
    for place in sorted(chance.sample(range(1, len(records) + 1), 20)):
        while read_so_far < place:
            end = min(place, read_so_far + chance.randint(1, 40))
            reduce(state, enumerate(records[read_so_far:end], read_so_far))
            read_so_far = end
        slack = 1e-4 if name.startswith("old-dtfl") else 1e-9
        assert close(figures(summary_of(state)), figures(summarise(records[:place])), slack), place


@pytest.mark.parametrize("name", WHOLE)
def test_a_summary_is_read_as_it_was_written(name: str) -> None:
    summary = summarise(WHOLE[name])
    assert figures(Summary.of_dict(figures(summary))) == figures(summary)


def test_a_resume_that_goes_back_too_far_has_all_records_read_again(tmp_path: Path) -> None:
    """Its checkpoint was put back by hand, say: rounds are done again that were added up long ago."""
    records = [
        *Synthetic(rounds=150, accuracy=0.001, finish=False).records,
        *Synthetic(rounds=3, first_round=20).records,
    ]
    tail = RecordTail(keep(tmp_path, records))
    while tail.step(1 << 16):
        pass
    assert figures(summary_of(tail.state)) == figures(summarise(records))
    with pytest.raises(Rewound):
        folded(records, portion=400)


def test_portions_make_no_difference() -> None:
    records = CASES["a device is lost"].records
    whole, bits = folded(records), folded(records, 7)
    assert bits.rows == [
        msgspec.structs.replace(row, rev=new.rev) for row, new in zip(whole.rows, bits.rows, strict=True)
    ]
    assert (bits.events, bits.devices) == (whole.events, whole.devices)


def test_a_state_survives_being_kept() -> None:
    state = folded(CASES["a device is lost"].records[:200])
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=RunState)
    assert again == state
    rest = list(enumerate(CASES["a device is lost"].records))[200:]
    reduce(state, rest)
    reduce(again, rest)
    assert again == state


def test_phases_reported_rounds_later_still_say_why() -> None:
    records = Synthetic(rounds=6).records
    late = [r for r in records if isinstance(r, t.DevicePhases)]
    kept = [r for r in records if not isinstance(r, t.DevicePhases)]
    state = folded(kept)
    assert [row.straggler for row in state.rows] == ["weak"] * 6
    assert [row.why for row in state.rows] == [""] * 6
    reduce(state, list(enumerate(late)))
    assert [row.why for row in state.rows] == ["cpu"] * 6
    assert not unsettled(state)


def waiting_for_download(phase: Phase) -> Phase:
    return msgspec.structs.replace(phase, name="waiting") if phase.name == "download" else phase


def test_a_download_that_no_device_reports_is_a_cause_too() -> None:
    """As in a simulated run."""
    state = folded(
        [
            msgspec.structs.replace(r, phases=tuple(waiting_for_download(p) for p in r.phases))
            if isinstance(r, t.DevicePhases)
            else r
            for r in CASES["the downlink is slow"].records
        ]
    )
    assert [row.why for row in state.rows] == ["downlink"] * len(state.rows)


def test_a_round_whose_phases_never_come_is_given_up() -> None:
    records = [r for r in Synthetic(rounds=200).records if not isinstance(r, t.DevicePhases)]
    state = folded(records)
    assert len(unsettled(state)) == PATIENCE
    assert len(state.session.rounds) == 2 * PATIENCE


def test_many_complete_rounds_at_once_are_all_settled() -> None:
    state = folded(Synthetic(rounds=150, accuracy=0.001).records)
    assert [row.why for row in state.rows] == ["cpu"] * 150
    assert not unsettled(state)


def test_rounds_are_settled_soon_though_clocks_are_measured_only_at_the_start() -> None:
    """As in a run whose devices stay and keep their profiles."""
    state = folded(Synthetic(rounds=30, clock_every_round=False, accuracy=0.01, finish=False).records, portion=20)
    assert len(unsettled(state)) <= 2


def test_facts_of_settled_rounds_are_dropped() -> None:
    state = folded(Synthetic(rounds=150, accuracy=0.001).records, portion=40)
    assert len(state.session.rounds) == PATIENCE
    assert not any(facts.uploads or facts.updates or facts.started.assignments for facts in kept_rounds(state))
    assert all(len(device.phases) == 1 for device in state.session.devices.values())
    assert not state.session.events
    assert len(state.session.limits) == len(FLEET)


def test_a_resumed_run_counts_rounds_as_done_last() -> None:
    first = Synthetic(rounds=5, finish=False).records
    second = Synthetic(rounds=3, first_round=3).records
    state, expected = folded(first + second), summarise(first + second)
    assert [row.number for row in state.rows] == [0, 1, 2, 3, 4, 5]
    assert [row.axis_s + (row.seconds or 0) for row in state.rows] == pytest.approx(
        [row.elapsed_s for row in expected.rounds]
    )
    assert state.devices["weak"].actual_s == expected.devices["weak"].actual_s
    assert [mark.kind for mark in state.events] == ["resumed", "ended"]


def reprofile(at: int, why: str = "reprofile", profile: str = "slow", dilation: float = 1.0) -> t.LimitsSet:
    limits = (0.2 / dilation, int(10e6 / dilation), int(20e6 / dilation))
    return t.LimitsSet(at, "middle", why, profile, *limits, *limits)


def test_a_changed_profile_is_a_mark_before_the_round_that_has_it() -> None:
    run = Synthetic(rounds=3, dilation=2.0)
    index = next(i for i, r in enumerate(run.records) if isinstance(r, t.RoundStarted) and r.round == 2)
    records = [*run.records[:index], reprofile(run.starts[2] - MS, dilation=2.0), *run.records[index:]]
    state = folded(records)
    (mark,) = [mark for mark in state.events if mark.kind == "profile"]
    assert (mark.device, mark.round) == ("middle", 2)
    assert mark.axis_s == pytest.approx(state.rows[1].axis_s + (state.rows[1].seconds or 0))
    assert mark.text == "profile profile-middle → slow: 0.2 CPU, 10 Mbit/s up, 20 Mbit/s down"
    assert state.devices["middle"].reprofiled == 2
    assert [m[1:4] for m in history(state, "middle")["events"]] == [[3, "profile", "middle"]]  # type: ignore[index]


def test_state_from_before_the_run_is_no_event() -> None:
    run = Synthetic(rounds=1)
    before = reprofile(run.records[0].at_ns - 1)  # type: ignore[union-attr]
    state = folded([run.records[0], before, *run.records[1:]])
    assert [mark.kind for mark in state.events] == ["profile", "ended"]  # back to its own when the run begins
    assert state.events[0].text.startswith("profile slow → profile-middle:")


def test_a_lost_device_is_away_then_back_and_its_round_marked() -> None:
    records = CASES["a device is lost"].records
    left = next(i for i, r in enumerate(records) if isinstance(r, t.DeviceLeft))
    cursor = Cursor()
    state = RunState()
    lines = list(enumerate(records))
    reduce(state, lines[: left + 1])
    first = changes(state, cursor)
    assert first is not None
    assert {d["name"]: d["state"] for d in first["devices"]}["middle"] == "away"
    reduce(state, lines[left + 1 :])
    assert [(m.kind, m.device) for m in state.events] == [
        ("left", "middle"),
        ("out", "middle"),
        ("joined", "middle"),
        ("ended", ""),
    ]
    assert state.rows[2].left_out == {"lost": 1}


def test_a_page_gets_everything_once_and_then_what_changed() -> None:
    lines = list(enumerate(Synthetic(rounds=6).records))
    state, cursor, rows, marks = RunState(), Cursor(), [], []
    for start in range(0, len(lines), 11):
        reduce(state, lines[start : start + 11])
        change = changes(state, cursor)
        if change is None:
            continue
        if change["whole"]:
            rows, marks = [], []
        rows[change["rows_from"] :] = change["rows"]
        marks[change["events_from"] :] = change["events"]
    complete = changes(state, Cursor())
    assert complete is not None
    assert (rows, marks) == (complete["rows"], complete["events"])
    assert changes(state, cursor) is None
    late = changes(state, Cursor(state.epoch, state.rev - 1, 6, 1, 1))
    assert late is not None
    assert len(late["rows"]) < 6


def test_nothing_known_yet_is_no_error() -> None:
    assert changes(RunState(), Cursor()) is None
    state = folded(Synthetic().records[:1])
    assert changes(state, Cursor()) is not None
    assert summary_of(state).rounds == []
    assert curve(summary_of(state)) == []


def test_a_session_begins_before_the_first_round() -> None:
    """Records of others may say so: the state does not go back behind what it never had."""
    second = Synthetic(rounds=2).records
    assert isinstance(second[0], t.RunStarted)
    records = [*KILLED, msgspec.structs.replace(second[0], resumed_from=-5), *second[1:]]
    assert close(figures(summary_of(folded(records, 50))), figures(summarise(records)))


@pytest.mark.parametrize("name", ["resumed", "resumed twice", "of two dilations"])
def test_rounds_that_are_done_again_count_once_in_every_sum(name: str) -> None:
    """What the first session did of them is taken back, from a live state too."""
    counts: dict[str, Any] = {"pieces": 4, "pieces_in_quota": 1, "quota_s": 0.1, "cpu_s": 0.2}
    counted: list[t.Record] = [
        msgspec.structs.replace(r, report=msgspec.structs.replace(r.report, **counts))
        if isinstance(r, t.UpdateReceived)
        else r
        for r in WHOLE[name]
    ]
    state = folded(counted, portion=30)
    for summary in (summary_of(state), summarise(counted)):
        assert summary.bytes_up_total + summary.bytes_down_total == sum(row.bytes for row in summary.rounds)
        devices = summary.devices.values()
        assert sum(each.bytes_up for each in devices) == summary.bytes_up_total
        assert summary.batches_in_quota_share == 0.25
    rounds = len(summary.rounds)
    assert [(each.in_quota.tasks, each.in_quota.pieces) for each in state.devices.values()] == [
        (rounds, 4 * rounds)
    ] * 3


@pytest.mark.parametrize("first", [PATIENCE - 1, PATIENCE + 20, 149 - PATIENCE, 150 - PATIENCE, 151 - PATIENCE])
def test_a_resume_may_go_back_to_any_round_that_is_still_in_the_index(first: int, tmp_path: Path) -> None:
    """Near the last round that was added up: the records are read again, or need not be."""
    killed = Synthetic(rounds=150, accuracy=0.001, finish=False).records
    records = [*killed, *Synthetic(rounds=3, first_round=first).records]
    tail = RecordTail(keep(tmp_path, records))
    while tail.step(1 << 15):
        pass
    assert close(figures(summary_of(tail.state)), figures(summarise(records)))


def test_a_device_that_left_holds_no_round_open() -> None:
    """Nothing more comes from it."""
    records = Synthetic(rounds=30, lost=(2, "middle"), accuracy=0.01, finish=False).records
    left_ns = next(r.at_ns for r in records if isinstance(r, t.DeviceLeft))

    def says_more(record: t.Record) -> bool:
        back = isinstance(record, t.DeviceJoined) and record.again
        late = isinstance(record, t.DevicePhases) and record.device == "middle" and record.at_ns > left_ns
        return back or late

    assert len(unsettled(folded([r for r in records if not says_more(r)], portion=20))) <= 2


def test_a_finished_round_whose_phases_have_not_come_is_compared_too() -> None:
    records = Synthetic(method="dtfl", rounds=4, accuracy=0.1).records
    end = max(i for i, r in enumerate(records) if isinstance(r, t.RoundFinished))
    begun_ns = max(r.at_ns for r in records if isinstance(r, t.RoundStarted))
    going_on = [r for r in records[: end + 1] if not (isinstance(r, t.DevicePhases) and r.at_ns > begun_ns)]
    state = folded(going_on, 25)
    assert unsettled(state)
    found = compared([summary_of(state), summarise(Synthetic(method="fedavg").records)])
    assert [len(one["points"]) for one in found["methods"][0]["charts"]["bytes"]["seeds"]] == [3]
    assert {row[0] for row in found["profiles"]} == {"dtfl", "fedavg"}


def test_a_row_says_what_bounded_its_round_and_what_devices_waited_for() -> None:
    state = folded(Synthetic(FLEET, facts=True).records, 7)
    last = state.rows[-1].bounds
    assert last is not None
    assert summary_of(state).bound_by.text != ""
    assert more_words(last).startswith("Twice as fast: ")
    assert "Devices waited for" in more_words(last)


def test_looking_at_a_run_does_not_change_who_was_in_a_session() -> None:
    """After a resume with another fleet: the index that traces and reports read has the devices of each session."""
    first = Synthetic(rounds=2, finish=False).records
    second = Synthetic({"weak": WEAK, "new": Speed()}, rounds=2, first_round=2).records
    state = folded([*first, *second])
    assert changes(state, Cursor()) is not None
    assert [state.activity(name) for name in ("strong", "new")] == ["away", "present"]
    assert set(state.session.devices) == {"weak", "new"}
    assert set(summarise([*first, *second]).devices["strong"].phase_s) == set(
        summarise(first).devices["strong"].phase_s
    )


# ---- the Gantt of a round ----


def test_a_finished_round_has_the_names_of_the_timeline() -> None:
    run = Synthetic(dilation=2.0)
    state = folded(run.records)
    found = gantt(run.records, state.sessions[0], state.rows[1])
    assert found is not None
    assert not found["live"]
    rows = {row["label"]: row for row in found["rows"]}
    assert [name for name, row in rows.items() if row.get("slow")] == ["weak"]
    heads, cells = [head[0] for head in found["columns"]], {row[0]: row for row in found["cells"]}
    told = dict(zip(heads, cells["weak"], strict=True))
    assert (rows["weak"]["line"], told["predicted"]) == (0.5, "500 ms")  # of 1 s, divided by two
    assert found["now"] is None
    assert (told["compute"], told["upload tail"]) == ("600 ms", "50 ms")  # three batches of 0.4 s, divided by two
    assert sum(end - start for _, start, end, _ in rows["weak"]["bars"]) == pytest.approx(found["to"], rel=0.01)
    assert [bar[0] for bar in rows["orchestrator"]["bars"]] == ["plan", "merge", "evaluation", "checkpoint"]
    assert {one["name"] for one in found["legend"]} >= {"compute", "upload tail", "wait for others"}


def test_of_many_devices_those_that_were_done_last_stand_first() -> None:
    took = {f"d{i:02}": 100 + 20 * (7 * i % 16) for i in range(16)}
    for fleet in (took, dict(list(took.items())[:15])):
        run = Synthetic({name: Speed(compute=each) for name, each in fleet.items()}, rounds=2)
        found = gantt(run.records, folded(run.records).sessions[0], folded(run.records).rows[1])
        assert found is not None
        labels = [row["label"] for row in found["rows"] if not row.get("own")]
        assert labels == (sorted(fleet, key=fleet.__getitem__, reverse=True) if len(fleet) > 15 else list(fleet))


def test_what_is_not_reported_yet_is_named_by_what_was_seen() -> None:
    run = Synthetic(rounds=2)
    start = next(i for i, r in enumerate(run.records) if isinstance(r, t.RoundStarted) and r.round == 1)
    sent = run.records[start:]
    cut = next(i for i, r in enumerate(sent) if isinstance(r, t.UploadReceived) and r.device == "strong")
    wanted = [r for r in sent[:cut] if not (isinstance(r, t.DevicePhases) and r.device == "strong")]
    state = folded([*run.records[:start], *wanted])
    found = gantt(wanted, state.sessions[0], state.rows[1])
    assert found is not None
    assert found["live"]
    names = {bar[0] for row in found["rows"] if row["label"] == "strong" for bar in row["bars"]}
    assert found["now"] < found["to"] == 1.0  # the predicted end
    assert "working" in names
    assert "unreported" not in names


def test_short_stretches_are_drawn_together() -> None:
    run = Synthetic({"busy": Speed(compute=1, encode=1, tail=60_000), "other": Speed()}, rounds=1)
    state = folded(run.records)
    found = gantt(run.records, state.sessions[0], state.rows[0])
    assert found is not None
    (bars,) = [row["bars"] for row in found["rows"] if row["label"] == "busy"]
    assert len(bars) < 10
    assert all(a[2] <= b[1] + 1e-3 for a, b in pairwise(bars))


def test_a_round_that_is_not_there_has_no_gantt() -> None:
    run = Synthetic(rounds=2)
    state = folded(run.records)
    assert gantt([], state.sessions[0], state.rows[1]) is None


def test_rounds_of_two_lanes_lie_on_the_wall_clock() -> None:
    run = Synthetic(rounds=4, drawn={i: (("weak",), ("strong",))[i % 2] for i in range(4)}, dilation=2.0)
    lanes = [
        msgspec.structs.replace(r, lane=("slow", "quick")[r.round % 2]) if isinstance(r, t.RoundStarted) else r
        for r in run.records
    ]
    expected, state = summarise(lanes), folded(lanes)
    ends = [row.axis_s + (row.seconds or 0) for row in state.rows]
    assert ends == pytest.approx([row.elapsed_s for row in expected.rounds], abs=0.01)
    assert [x for x, _ in curve(summary_of(state))] == pytest.approx(
        [row.elapsed_s for row in expected.rounds], abs=0.01
    )
    assert summary_of(state).total_s == pytest.approx(expected.total_s, abs=0.01)


def with_lanes(run: Synthetic, late: int) -> list[t.Record]:
    """Its rounds in two lanes; round `late` ends (and is evaluated) after all others."""
    end = sort(run.records).sessions[0].end_ns
    moved: list[t.Record] = []
    for r in run.records:
        if isinstance(r, t.RoundStarted):
            r = msgspec.structs.replace(r, lane=("slow", "quick")[r.round != late])
        elif isinstance(r, t.RoundFinished) and r.round == late:
            seconds = r.seconds + (end - r.at_ns) / 1e9
            moved.append(msgspec.structs.replace(r, at_ns=end, seconds=seconds))
            continue
        elif isinstance(r, t.Evaluated) and r.round == late:
            moved.append(msgspec.structs.replace(r, at_ns=end))
            continue
        moved.append(r)
    return sorted(moved, key=lambda r: r.end_ns if isinstance(r, ServerStep | t.OrchestratorPhase) else r.at_ns)


def test_rounds_that_overlap_are_shown_in_the_order_in_which_they_ended() -> None:
    records = with_lanes(Synthetic(rounds=5, finish=False, accuracy=0.1), late=1)
    state, expected = folded(records), summarise(records)
    assert [row.number for row in summary_of(state).rounds] == [1, 3, 4, 5, 2]
    assert [y for _, y in curve(summary_of(state), "rounds")] == pytest.approx(
        [row.accuracy for row in expected.rounds]
    )
    assert state.accuracy == expected.final_accuracy == pytest.approx(0.2)


def test_the_uplink_of_a_device_that_sends_only_its_update_is_known() -> None:
    """The update is one chunk, so it takes no time where it arrives; the device says how long it sent."""
    state = folded(
        [
            msgspec.structs.replace(r, first_ns=r.at_ns, report=msgspec.structs.replace(r.report, upload_bytes=0))
            if isinstance(r, t.UpdateReceived)
            else r
            for r in Synthetic(rounds=2).records
            if not isinstance(r, t.UploadReceived)
        ]
    )
    sent_s = WEAK.tail / 1000
    assert state.devices["weak"].uplink_share == pytest.approx(WEIGHTS * 8 / sent_s / 30e6)


def test_calibration_is_sent_whenever_it_has_grown() -> None:
    state, cursor = folded(Synthetic(rounds=2).records), Cursor()
    before = changes(state, cursor)
    assert before is not None
    row = t.Calibrated(9, "weak", "cpu busy", "alone", 1.0, 1.02, "CPUs", 0.02, True, True, "")
    reduce(state, [(10**9, row)])
    sent = changes(state, cursor)
    assert sent is not None
    assert len(sent["calibration"]) == len(before["calibration"]) + 1
    assert sent["calibration"][-1] == ["weak", "CPU of a busy loop", "alone", "1 CPUs", "1.02 CPUs", "+2.0%", "holds"]
    reduce(state, [(10**9 + 1, t.Fault(10, "weak", "x"))])
    assert "calibration" not in (changes(state, cursor) or {})


def test_no_single_cause_is_told_as_none() -> None:
    assert standing_out({"cpu": 0.5, "uplink": 0.1}, 1.0) == "cpu"
    assert standing_out({"cpu": 0.09, "uplink": 0.0}, 1.0) == ""
    assert standing_out({"cpu": 0.0, "uplink": -1.0}, 0.0) == ""


def test_a_serving_run_has_no_straggler() -> None:
    records = [
        msgspec.structs.replace(r, notes={"serving": {}}) if isinstance(r, t.RoundStarted) else r
        for r in Synthetic(rounds=2, method="serve").records
    ]
    state = folded(records)
    assert [row.straggler for row in state.rows] == ["", ""]
    assert head(state)["serving"]


def test_batches_are_counted_once_however_often_a_round_is_looked_at() -> None:
    records = [
        msgspec.structs.replace(r, report=msgspec.structs.replace(r.report, pieces=3, pieces_in_quota=1, quota_s=0.1))
        if isinstance(r, t.UpdateReceived)
        else r
        for r in Synthetic(rounds=4).records
    ]
    device = folded(records, portion=1).devices["weak"]
    assert (device.in_quota.pieces, device.in_quota.pieces_in) == (12, 4)


def test_a_card_tells_model_data_and_a_short_curve(tmp_path: Path) -> None:
    (tmp_path / "experiment.yaml").write_text("model: {name: vgg16}\ndata: {name: digits}\n")
    assert about(tmp_path) == {"model": "vgg16", "data": "digits", "of": None}
    (tmp_path / "experiment.yaml").write_text("model: {name: a}\ndata: {name: b}\ntraining: {rounds: 30}\n")
    assert about(tmp_path)["of"] == 30
    (tmp_path / "experiment.yaml").write_text("model: {name: a}\ndata: {name: b}\ntraining: {rounds: 9, budget_s: 5}\n")
    assert about(tmp_path)["of"] is None  # who knows how many rounds five seconds hold
    for odd in ("", "model: 3", "- x", "model: {name: a", "\x00"):
        (tmp_path / "experiment.yaml").write_text(odd)
        assert about(tmp_path) == {"model": "", "data": "", "of": None}, odd
    assert about(tmp_path / "none") == {"model": "", "data": "", "of": None}
    assert spark([None, 0.12345, 0.5, None]) == [0.123, 0.5]
    curve_of_many = spark([index / 1000 for index in range(1000)])
    assert len(curve_of_many) <= 41
    assert curve_of_many[-1] == 0.999
    assert spark([]) == []


def test_of_a_run_that_is_over_the_round_of_median_length_is_shown_first(tmp_path: Path) -> None:
    records = Synthetic(rounds=4).records
    last = next(i for i, r in enumerate(records) if isinstance(r, t.RoundFinished) and r.round == 3)
    end = t.RunFinished(records[last].at_ns, "interrupted")  # type: ignore[union-attr]
    state = folded([*records[:last], end])
    assert state.current is not None
    assert state.last_finished is not None
    lengths = sorted((row.seconds, row.number) for row in state.rows if row.seconds is not None)
    assert (state.current.number, shown(state)) == (3, lengths[1][1])
    assert len(lengths) == 3
    assert shown(folded(records[:last])) == 3, "while it goes on, the round in progress"
    assert shown(folded(records[:1])) is None


def test_the_page_says_who_is_waited_for_and_since_when() -> None:
    records = sorted(
        Synthetic().records, key=lambda r: r.end_ns if isinstance(r, ServerStep | t.OrchestratorPhase) else r.at_ns
    )
    done = next(i for i, r in enumerate(records) if isinstance(r, t.DeviceDone))
    first = records[done]
    assert isinstance(first, t.DeviceDone)
    state = folded(records[: done + 1])
    waiting = head(state, first.at_ns + 3_000 * MS)["waiting"]
    assert (set(waiting["names"]), waiting["s"]) == (set(FLEET) - {first.device}, pytest.approx(3))
    assert head(state)["waiting"]["s"] is None, "a clock of another host"
    assert head(folded(records[:done]))["waiting"] is None
    begun = [
        msgspec.structs.replace(r, enforcement=t.SIMULATED) if isinstance(r, t.RunStarted) else r
        for r in records[: done + 1]
    ]
    virtual = head(folded(begun), first.at_ns + 3_000 * MS)["waiting"]
    assert (set(virtual["names"]), virtual["s"]) == (set(waiting["names"]), None), "its clock is not this host's"
    ended = head(folded(records))
    assert (ended["waiting"], ended["ending"]) == (None, "finished")
    assert "weak (profile-weak) was the straggler in 4 (100%) of 4 rounds" in ended["story"]
    assert 0 <= ended["session"]["first_s"] < ended["session"]["last_s"]
    assert ended["session"]["from"] == 0
