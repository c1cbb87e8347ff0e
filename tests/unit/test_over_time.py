"""The whole run over time: rows and loads, from a state and from timelines."""

from __future__ import annotations

import itertools

import pytest

from orchestrator.records.account import whole
from orchestrator.records.host_records import HostRound
from orchestrator.records.live.reducer import reduce
from orchestrator.records.live.run_state import RunState
from orchestrator.records.live.settling import explained
from orchestrator.records.shown.over_time import MOST_CELLS, OverTime, of_state
from orchestrator.records.types import Record, RoundFinished
from tests.summaries import summarised
from tests.synthetic import Synthetic
from tests.unit._runs import resumed

LOST = Synthetic(lost=(1, "middle"), dilation=2.5).records


def of_records(records: list[Record]) -> dict:  # type: ignore[type-arg]
    state = whole(records)
    over_time = OverTime(state)
    for timeline in explained(state):
        over_time.add(timeline)
    return over_time.result()


def state_of(records: list[Record]) -> RunState:
    state = RunState()
    reduce(state, enumerate(records))
    return state


def test_lanes_of_a_report_cover_the_run_with_the_names_of_the_timeline() -> None:
    found = of_records(LOST)
    lanes = {lane["label"]: lane["bars"] for lane in found["lanes"]["rows"]}
    assert set(lanes) == {"weak", "middle", "strong"}
    for bars in lanes.values():
        assert bars[0][1] == pytest.approx(0, abs=1e-6)
        assert bars[-1][2] == pytest.approx(found["to"], rel=1e-3)
        assert all(a[2] <= b[1] + 1e-6 for a, b in itertools.pairwise(bars))
    assert "compute" in {bar[0] for bar in lanes["weak"]}
    assert "offline" in {bar[0] for bar in lanes["middle"]}


def test_a_session_begins_where_the_one_before_it_ended() -> None:
    found = of_records(resumed())
    lanes = found["lanes"]["rows"]
    assert found["to"] == pytest.approx(max(bar[2] for lane in lanes for bar in lane["bars"]), rel=1e-3)
    for lane in lanes:
        assert all(bar[1] >= 0 for bar in lane["bars"])


def test_lanes_of_a_run_that_goes_on_tell_work_from_waits() -> None:
    state = state_of(LOST)
    found = of_state(state)
    names = {lane["label"]: [bar[0] for bar in lane["bars"]] for lane in found["lanes"]["rows"]}
    assert "left_out" in names["middle"]
    assert "wait_for_others" in names["strong"]
    assert found["to"] == pytest.approx(state.elapsed_s, rel=1e-4)


def test_loads_are_shares_of_the_limits_over_whole_rounds() -> None:
    records = Synthetic().records
    from_state, from_records = of_state(state_of(records)), of_records(records)
    for quantity in ("CPU", "uplink", "downlink"):
        shares = [[cell[2] for cell in row["cells"]] for row in from_state["loads"][quantity]]
        assert shares == [[cell[2] for cell in row["cells"]] for row in from_records["loads"][quantity]]
        assert all(0 < share <= 1.5 for row in shares for share in row), quantity


def test_disturbed_rounds_are_marked_and_the_host_has_a_curve() -> None:
    records = list(Synthetic().records)
    ends = [i for i, record in enumerate(records) if isinstance(record, RoundFinished)]
    end = records[ends[1]]
    assert isinstance(end, RoundFinished)
    begin_ns = end.at_ns - 1_000_000_000
    load = {"orchestrator": 0.2, "event loop": 0.1, "broker": 0.95}
    records.insert(ends[1] + 1, HostRound(end.at_ns, begin_ns, end.round, 2.0, 1.5, 0.0, 0.5, load))
    for found in (of_records(records), of_state(state_of(records))):
        assert set(found["host"]) == {"the whole host", "orchestrator", "event loop", "broker"}
        assert found["host"]["the whole host"][0][1] == pytest.approx(1.5)
        (mark,) = found["disturbed"]
        assert "round 2 was disturbed by an overloaded broker" in mark["text"]


def test_a_long_run_is_drawn_with_few_cells() -> None:
    found = of_state(state_of(Synthetic(rounds=700).records))
    for row in found["loads"]["CPU"]:
        assert len(row["cells"]) <= MOST_CELLS
        assert row["cells"][-1][3].endswith("700")


def test_nothing_yet_is_no_error() -> None:
    found = of_records(Synthetic(rounds=0).records)
    assert (found["to"], found["lanes"]["rows"]) == (0, []), "an axis of no time has no rows"


def test_a_slow_first_round_is_marked_once_later_rounds_show_what_is_usual() -> None:
    records: list[Record] = []
    for record in Synthetic(rounds=5).records:
        records.append(record)
        if isinstance(record, RoundFinished):
            loop_ms = 8.0 if record.round == 0 else 5.0
            records.append(
                HostRound(record.at_ns, record.at_ns - 1, record.round, 2.0, 0.0, 0.0, loop_ms=loop_ms, loops=9)
            )
    state, half = state_of(records), RunState()
    for part in (records[:30], records[30:]):
        reduce(half, enumerate(part))
    expected = [["slow_host"], [], [], [], []]
    assert summarised(records)["disturbed"] == expected
    assert [list(row.disturbed or ()) for row in state.rows] == expected
    assert [list(row.disturbed or ()) for row in half.rows] == expected
