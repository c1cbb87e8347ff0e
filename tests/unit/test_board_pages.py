"""What slows boards down, and what their sensors read, on the live page, in the report and in `fleet ps`."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from edgebed.wire.reading import BoardReading
from orchestrator.cli.fleet import board_table
from orchestrator.dashboard.view import Cursor, changes
from orchestrator.fleet.spec.profile import Limits
from orchestrator.records import types as t
from orchestrator.records.account import summarise, whole
from orchestrator.records.board_marks import HOLD_NS, Slowed, extend
from orchestrator.records.live.reducer import reduce
from orchestrator.records.live.run_state import RunState
from orchestrator.records.live.settling import explained
from orchestrator.records.run_index import sort
from orchestrator.records.shown.over_time import OverTime, of_state
from orchestrator.records.timeline.board import board_row, clock_words, frequency
from orchestrator.records.timeline.events import unplanned
from orchestrator.report.tables import BOARD_COLUMNS, board_rows
from orchestrator.runs.daemon import DeviceInFleet, FleetState
from tests import board_run
from tests.synthetic import Synthetic

RECORDS = board_run.records()
STARTS = [record.at_ns for record in RECORDS if isinstance(record, t.RoundStarted)]


def live(portion: int) -> RunState:
    state = RunState()
    lines = list(enumerate(RECORDS))
    for at in range(0, len(lines), portion):
        reduce(state, lines[at : at + portion])
    return state


def test_a_mark_begins_once_and_lasts_over_short_pauses() -> None:
    slowed: list[Slowed] = []
    assert extend(slowed, ["heat"], 0) == ["heat"]
    assert extend(slowed, ["heat", "throttled"], HOLD_NS) == ["throttled"]
    assert extend(slowed, [], 2 * HOLD_NS) == []
    assert extend(slowed, ["heat"], 2 * HOLD_NS + 1) == ["heat"]
    assert slowed == [
        Slowed("heat", 0, HOLD_NS),
        Slowed("throttled", HOLD_NS, HOLD_NS),
        Slowed("heat", 2 * HOLD_NS + 1, 2 * HOLD_NS + 1),
    ]


def test_what_slows_boards_down_is_told_when_it_begins() -> None:
    (session,) = sort(RECORDS).sessions
    told = [(event.device, event.kind, event.text) for event in unplanned(session.events)]
    assert told == [
        ("weak", "board", "its frequency is capped"),
        ("weak", "board", "it is so hot that it slows itself down"),
        ("middle", "board", "its supply voltage is too low"),
        ("strong", "board", "its power mode was changed to 7W"),
    ]
    times = [event.at_ns for event in unplanned(session.events)]
    assert all(STARTS[2] <= at <= STARTS[2] + board_run.S // 2 for at in times[:2])
    assert STARTS[5] < times[2] < STARTS[6] <= times[3]


@pytest.mark.parametrize("portion", [1, 7, 10_000])
def test_lanes_of_the_live_page_have_the_marks_however_the_records_come_in(portion: int) -> None:
    lanes = {lane["label"]: lane["marks"] for lane in of_state(live(portion))["lanes"]["rows"]}
    told = {name: [text.splitlines()[0] for *_, text in marks] for name, marks in lanes.items()}
    assert told["weak"] == ["its frequency is capped", "it is so hot that it slows itself down"]
    rounds = [row.axis_s for row in live(10_000).rows]
    for cls, begin, end, _ in lanes["weak"]:
        assert cls == "m-board"
        assert rounds[2] <= begin < rounds[2] + 0.5
        assert rounds[5] - 0.5 < end <= rounds[5]
    assert told["strong"] == ["its power mode was changed"]


def test_the_report_s_lanes_have_the_same_marks() -> None:
    state = whole(RECORDS)
    over_time = OverTime(state)
    for timeline in explained(state):
        over_time.add(timeline)
    lanes = {lane["label"]: lane["marks"] for lane in over_time.result()["lanes"]["rows"]}
    begin_ns = STARTS[0]
    assert len(lanes["weak"]) == 2
    for _, begin, end, _ in lanes["weak"]:
        assert STARTS[2] <= begin_ns + begin * 1e9 < begin_ns + end * 1e9 < STARTS[5]


def test_the_live_page_shows_boards_with_what_they_read_last() -> None:
    found = changes(live(50), Cursor())
    assert found is not None
    table = found["boards"]
    rows = {row[0]: dict(zip(table["columns"], row, strict=True)) for row in table["rows"]}
    assert rows["weak"]["model"] == "Raspberry Pi 4 Model B Rev 1.4"
    assert (rows["weak"]["marks"], rows["weak"]["power"]) == ("none", "–")
    assert (rows["strong"]["marks"], rows["strong"]["power mode"]) == ("power mode", "7W (was 15W)")
    joules = summarise(RECORDS).devices["strong"].joules[-1]
    assert rows["strong"]["energy"] == f"{joules:.3g} J"


def test_a_run_without_boards_shows_none() -> None:
    state = RunState()
    reduce(state, list(enumerate(Synthetic().records)))
    found = changes(state, Cursor())
    assert found is not None
    assert found["boards"] is None
    assert all(lane["marks"] == [] for lane in of_state(state)["lanes"]["rows"])


def test_the_report_s_table_counts_rounds_and_adds_up_energy() -> None:
    rows = {row[0]: dict(zip(BOARD_COLUMNS, row, strict=True)) for row in board_rows(summarise(RECORDS))}
    assert rows["weak"]["rounds with marks"] == "frequency cap 3, heat 3 of 8"
    assert rows["weak"]["hottest"] == "82 °C"
    assert rows["weak"]["energy per round"] == "–"
    assert rows["middle"]["rounds with marks"] == "under voltage 1 of 8"
    assert rows["strong"]["rounds with marks"] == "power mode 2 of 8"
    assert rows["strong"]["energy per round"].endswith(" J")


@pytest.mark.parametrize(
    ("reading", "text"),
    [
        (BoardReading(0), "–"),
        (BoardReading(0, (1000, None, 2000)), "1500 MHz"),
        (BoardReading(0, (1000,), cap=0.5), "1000 MHz, at most 50%"),
        (BoardReading(0, (1000,), cap=1.0), "1000 MHz"),
    ],
)
def test_frequencies_in_words(reading: BoardReading, text: str) -> None:
    assert frequency(reading) == text


def test_what_is_not_known_is_a_dash() -> None:
    assert board_row("pi", {}, None, None) == ["pi", *["–"] * 8]
    assert clock_words({"clock": "synchronised with a", "clock_error_s": "0.002"}) == "synchronised with a (± 2 ms)"


def test_fleet_ps_has_a_table_of_boards() -> None:
    limits = Limits(4.0, 0, 0, 4096)
    reading = BoardReading(0, (1000,) * 4, celsius=81.6, throttled=0x8)
    pi = DeviceInFleet("pi", "pi", limits, None, "", board_run.facts("weak"), reading)
    state = FleetState("f", "f1", "boards", "unlimited", 1.0, "", (pi, DeviceInFleet("c", "c", limits, None)))
    said = Console(file=io.StringIO(), width=200)
    said.print(board_table(state))
    assert isinstance(said.file, io.StringIO)
    text = said.file.getvalue()
    assert "Raspberry Pi 4 Model B Rev 1.4" in text
    assert "1000 MHz" in text
    assert "82 °C" in text
    assert "heat" in text
    assert text.count("│ c ") == 0
