"""The rule that says which rounds the host disturbed, and by what."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from orchestrator.records import types as t
from orchestrator.records.account import summarise
from orchestrator.records.compare.comparison import compare
from orchestrator.records.live.reducer import reduce
from orchestrator.records.live.run_state import RunState
from orchestrator.records.timeline.disturbance import HostOfRound, TaskWork, disturbed_line, not_got_s
from orchestrator.report.tables import round_rows
from tests.hosts import hosts_of_rounds
from tests.summaries import changed, summarised
from tests.synthetic import Synthetic
from tests.unit._runs import with_host


def with_report(records: list[t.Record], device: str, round: int, **changed: Any) -> list[t.Record]:
    """The records with another report of one device, whose quota is one CPU; it uses half of it."""

    def changed_one(record: t.Record) -> t.Record:
        if isinstance(record, t.LimitsSet) and record.device == device:
            return msgspec.structs.replace(record, cpus=1.0)
        if not isinstance(record, t.UpdateReceived) or (record.device, record.round) != (device, round):
            return record
        return msgspec.structs.replace(record, report=msgspec.structs.replace(record.report, **changed))

    return [changed_one(record) for record in records]


def causes(rounds: dict[int, dict[str, Any]]) -> list[tuple[str, ...] | None]:
    found = hosts_of_rounds(with_host(Synthetic().records, rounds))
    return [found[number].causes for number in sorted(found)]


# ---- CPU not got -----------------------------------------------------------------------------------------------------

WORK = TaskWork(wall_s=10.0, cpu_s=1.5)


def test_cpu_is_not_got_where_the_quota_allowed_it_and_threads_waited() -> None:
    assert not_got_s(0.2, WORK, delayed_s=9.0, throttled_s=6.0) == pytest.approx(0.5)


def test_no_more_is_lost_than_threads_waited_beyond_the_stops() -> None:
    assert not_got_s(0.2, WORK, delayed_s=6.1, throttled_s=6.0) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("cpus", "delayed_s", "throttled_s"),
    [(0.2, 6.0, 6.0), (0.2, 5.0, 6.0), (0.15, 9.0, 0.0), (0.1, 9.0, 0.0)],
    ids=["only the quota stopped it", "a stop that was counted late", "it got all of its quota", "a free start"],
)
def test_nothing_is_lost(cpus: float, delayed_s: float, throttled_s: float) -> None:
    assert not_got_s(cpus, WORK, delayed_s, throttled_s) == pytest.approx(0.0)


def test_threads_of_one_device_that_wait_for_each_other_lose_nothing() -> None:
    """Measured: two threads, quota 0.2, 5 s, nobody else: delay less stops is 1.5 s."""
    assert not_got_s(0.2, TaskWork(5.0, 0.996), delayed_s=8.96, throttled_s=7.49) < 0.005


# ---- rounds ----------------------------------------------------------------------------------------------------------


def test_a_calm_run_is_not_disturbed() -> None:
    assert causes({}) == [()] * 4


@pytest.mark.parametrize(
    ("values", "cause"),
    [
        ({"stolen_s": 0.2}, "steal"),
        ({"busy_s": 1.95}, "rival"),
        ({"loop_ms": 2.3}, "slow_host"),
        ({"load_s": {"orchestrator": 1.2, "event loop": 0.95}}, "orchestrator"),
        ({"load_s": {"broker": 0.92}}, "broker"),
    ],
)
def test_only_the_round_with_the_cause_is_marked(values: dict[str, Any], cause: str) -> None:
    assert causes({2: values}) == [(), (), (cause,), ()]


@pytest.mark.parametrize(
    "values",
    [
        {"stolen_s": 0.05},
        {"busy_s": 1.5},
        {"busy_s": 1.95, "devices_s": 1.7},
        {"busy_s": 1.95, "devices_s": None},
        {"busy_s": 1.95, "devices_s": 1.0, "load_s": {"orchestrator": 0.9, "event loop": 0.8}},
        {"loop_ms": 2.1},
        {"loop_ms": None},
        {"loop_ms": 3.0, "loops": 6},
        {"load_s": {"trainer": 1.7}},
    ],
    ids=[
        "little steal",
        "others use what is free",
        "full of its own devices",
        "not known whose",
        "full of its own processes",
        "a little slower",
        "no loop",
        "too few loops",
        "a trainer with two threads",
    ],
)
def test_what_disturbs_nobody_is_not_marked(values: dict[str, Any]) -> None:
    assert causes({1: values}) == [()] * 4


def test_a_device_that_did_not_get_its_cpu_marks_the_round() -> None:
    records = with_host(with_report(Synthetic().records, "weak", 1, delayed_s=3.0, throttled_s=0.2))
    found = hosts_of_rounds(records)
    assert [found[number].causes for number in sorted(found)] == [(), ("rival",), (), ()]
    assert (found[1].lost_s["weak"] or 0) > 0.1
    assert "weak" in found[1].disturbed[0].why


def test_without_records_of_the_host_nothing_is_said() -> None:
    found = hosts_of_rounds(Synthetic().records)
    assert {(host.causes, host.speed, host.stolen_share) for host in found.values()} == {(None, None, None)}
    assert HostOfRound().causes is None


def test_the_summary_counts_disturbed_rounds() -> None:
    summary = summarised(with_host(Synthetic(dilation=2.0).records, {0: {"stolen_s": 0.5}, 3: {"loop_ms": 4.0}}))
    assert summary["disturbed"] == [["steal"], [], [], ["slow_host"]]
    assert summary["disturbed_rounds"] == 2
    assert summary["stolen_share"][0] == pytest.approx(0.25)
    assert summary["host_speed"] == pytest.approx([1.0, 1.0, 1.0, 0.5])
    assert summary["others_share"][1] == pytest.approx(0.1)
    assert summary["load"] == {"orchestrator": pytest.approx([0.2] * 4)}


def test_the_live_state_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    records = with_host(Synthetic().records, {1: {"stolen_s": 0.5, "load_s": {"broker": 0.95}}})
    state = RunState()
    for record in records:
        reduce(state, [(0, record)])
    assert [list(row.disturbed or ()) for row in state.rows] == summarised(records)["disturbed"]
    assert [event.text for event in state.events if event.kind == "disturbed"] == [
        "round 2: the hypervisor took 25% of the CPU time; the broker was busy for 95% of the time"
    ]


def test_a_line_is_written_while_the_run_goes_on() -> None:
    records = with_host(Synthetic().records, {1: {"stolen_s": 0.5}, 2: {"loop_ms": 9.0}})
    lines = [line for record in records if (line := disturbed_line(record)) is not None]
    assert lines == ["round 2 was disturbed: the hypervisor took 25% of the CPU time"]


def test_the_comparison_says_how_many_rounds_were_disturbed() -> None:
    calm = changed(summarise(with_host(Synthetic().records)), run="calm")
    rough = changed(summarise(with_host(Synthetic().records, {0: {"busy_s": 2.0}, 3: {"busy_s": 2.0}})), run="rough")
    made = compare([calm, rough, summarise(Synthetic().records)])
    assert [text["disturbed_rounds"] for text in made.texts] == ["0", "2", "–"]
    (note,) = [note for note in made.notes if "disturbed" in note]
    assert note.startswith("rough: the host disturbed 2 of 4 rounds (other programs in 2): stop the other load")


def test_the_report_names_what_disturbed_a_round() -> None:
    summary = summarise(with_host(Synthetic().records, {2: {"loop_ms": 3.0}}))
    assert ["a slow host" in row for row in round_rows(summary)] == [False, False, True, False]
    assert ["nothing" in row for row in round_rows(summary)] == [True, True, False, True]
    assert not any("nothing" in row for row in round_rows(summarise(Synthetic().records)))


def test_a_summary_of_older_records_says_that_it_does_not_know() -> None:
    summary = summarised(Synthetic().records)
    assert summary["disturbed"] == [None] * 4
    assert summary["disturbed_rounds"] is None
    assert summary["not_got_s"] == dict.fromkeys(("weak", "middle", "strong"), [None] * 4)


def test_seconds_not_got_are_divided_by_the_dilation() -> None:
    def lost(dilation: float) -> float:
        records = with_report(Synthetic(dilation=dilation).records, "weak", 1, delayed_s=9.0, throttled_s=0.2)
        found, summary = hosts_of_rounds(records)[1].lost_s["weak"], summarised(records)["not_got_s"]["weak"][1]
        assert found is not None
        assert summary == pytest.approx(found / dilation)
        return found

    assert lost(2.0) > 0
