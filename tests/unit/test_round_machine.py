"""The round machine: liveness by progress, deadline, quorum, and indifference to foreign or repeated events."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.rounds.machine import (
    OPEN,
    Completed,
    Delivered,
    Dropped,
    Effect,
    Finish,
    Held,
    Leave,
    Progressed,
    RoundEvent,
    RoundMachine,
    TaskState,
    Tick,
    Updated,
)


def machine(
    *devices: str,
    deadline_s: float | None = None,
    quorum: int = 1,
    liveness_s: float = 10.0,
    ceiling_s: float | None = None,
    ends: float = math.inf,
) -> RoundMachine:
    limits = {"deadline_s": deadline_s, "ceiling_s": ceiling_s, "ends": ends}
    return RoundMachine(devices, 0.0, quorum=quorum, liveness_s=liveness_s, **limits)  # type: ignore[arg-type]


def play(m: RoundMachine, *events: tuple[float, RoundEvent]) -> list[Effect]:
    return [effect for now, event in events for effect in m.handle(event, now)]


def work(device: str, at: float) -> list[tuple[float, RoundEvent]]:
    return [(at, Delivered(device)), (at, Updated(device)), (at, Completed(device))]


def test_the_round_ends_when_all_are_done_in_the_order_of_names() -> None:
    effects = play(machine("b", "a"), *work("b", 1), *work("a", 2))
    assert effects == [Finish(("a", "b"), "all done")]


def test_a_lost_device_costs_its_own_work_and_nothing_else() -> None:
    effects = play(machine("a", "b"), (1, Dropped("a", "lost", "killed")), *work("b", 2))
    assert effects == [Leave("a", "lost", "killed"), Finish(("b",), "all done")]


def test_a_slow_device_that_progresses_is_never_lost() -> None:
    m = machine("a", liveness_s=10)
    events: list[tuple[float, RoundEvent]] = []
    for now in range(0, 500, 9):
        events += [(now, Progressed("a")), (now + 8.9, Tick())]
    assert play(m, (0, Delivered("a")), *events) == []


def test_a_silent_device_is_lost_after_liveness() -> None:
    m = machine("a", "b", liveness_s=10)
    play(m, *work("b", 1), (2, Delivered("a")))
    assert m.wakeup(2.0) == 12
    effects = play(m, (12, Tick()))
    assert [type(e) for e in effects] == [Leave, Finish]
    assert m.states["a"] is TaskState.OUT


def test_the_deadline_ends_the_round_with_the_quorum_and_names_the_late() -> None:
    m = machine("a", "b", "c", deadline_s=5, quorum=2, liveness_s=1000)
    play(m, *work("a", 1), *work("b", 2), (2, Delivered("c")))
    effects = play(m, (5, Tick()))
    assert effects[0] == Leave("c", "late", "not done at the deadline of 5 s", 5.0)
    assert effects[1] == Finish(("a", "b"), "deadline")


def test_below_the_quorum_the_deadline_waits() -> None:
    m = machine("a", "b", "c", deadline_s=5, quorum=2, liveness_s=1000)
    assert play(m, *work("a", 1), (5, Tick()), (6, Progressed("b"))) == []
    assert play(m, *work("b", 7))[-1] == Finish(("a", "b"), "deadline")


def test_a_round_with_too_few_is_void() -> None:
    m = machine("a", "b", quorum=2)
    effects = play(m, *work("a", 1), (2, Dropped("b", "failed", "out of memory")))
    assert effects[-1] == Finish((), "void")


def test_what_is_done_stays_done() -> None:
    m = machine("a", "b")
    play(m, *work("a", 1))
    assert play(m, (2, Dropped("a", "lost", "went away afterwards"))) == []
    assert m.done() == ("a",)


def test_a_device_whose_update_is_here_is_no_longer_needed() -> None:
    m = machine("a", "b", liveness_s=10)
    effects = play(m, (1, Updated("a")), *work("b", 2), (3, Dropped("a", "lost", "killed")), (500, Tick()))
    assert effects == []
    assert m.wakeup(1000.0) is None
    assert play(m, (501, Completed("a"))) == [Finish(("a", "b"), "all done")]


events = st.one_of(
    [st.builds(kind, st.sampled_from("abx")) for kind in (Delivered, Progressed, Updated, Completed)]
    + [st.builds(Dropped, st.sampled_from("abx"), st.just("lost"), st.just("w")), st.just(Tick())]
)


@given(st.lists(st.tuples(st.floats(0, 5), events), max_size=60))
def test_any_order_of_events_ends_the_round_once_and_only_with_completed_devices(
    steps: list[tuple[float, RoundEvent]],
) -> None:
    m = machine("a", "b", deadline_s=40, liveness_s=15)
    now, effects, completed = 0.0, [], set()
    endings: list[tuple[float, RoundEvent]] = [(1000.0, Tick()), (0.0, Completed("a")), (0.0, Completed("b"))]
    for delta, event in [*steps, *endings]:
        now += delta
        updated = {d for d, s in m.states.items() if s is TaskState.UPDATED}
        if isinstance(event, Completed) and event.device in updated and not m.finished:
            completed.add(event.device)
        effects += m.handle(event, now)
    ends = [e for e in effects if isinstance(e, Finish)]
    assert len(ends) == 1
    assert set(ends[0].merged) == completed
    assert not any(s in OPEN for s in m.states.values())
    assert m.wakeup(now) is None


def test_after_the_deadline_nothing_wakes_the_round_but_liveness() -> None:
    m = machine("a", "b", deadline_s=5, quorum=2, liveness_s=100)
    play(m, *work("a", 1), (2, Delivered("b")), (5, Tick()))
    assert m.wakeup(5.0) == 102


def test_the_round_ends_when_enough_are_done() -> None:
    three = RoundMachine("abc", 0.0, deadline_s=None, quorum=1, liveness_s=10, enough=2)
    assert play(three, *work("a", 1)) == []
    assert play(three, *work("b", 2)) == [Leave("c", "late", "2 others were enough"), Finish(("a", "b"), "enough")]
    two = RoundMachine("ab", 0.0, deadline_s=None, quorum=1, liveness_s=10, enough=1)
    assert play(two, *work("a", 1))[0] == Leave("b", "late", "1 other was enough")


def test_a_round_that_lost_more_than_it_could_spare_ends_with_the_rest() -> None:
    three = RoundMachine("abc", 0.0, deadline_s=None, quorum=1, liveness_s=10, enough=2)
    play(three, *work("a", 1), (2, Dropped("b", "failed", "x")))
    assert play(three, (3, Dropped("c", "failed", "x")))[-1] == Finish(("a",), "all done")


def test_past_the_deadline_a_half_shared_by_a_group_does_not_wait_for_those_who_still_work() -> None:
    """In a group nobody is done before the half has used the uploads of all who are in."""
    group = machine("a", "b", "c", deadline_s=5, quorum=2)
    assert play(group, (1, Delivered("a")), (1, Delivered("b")), (1, Updated("a")), (6, Tick())) == []
    late = "not done at the deadline of 5 s"
    assert play(group, (7, Updated("b"))) == [Leave("c", "late", late, 5.0)]
    assert play(group, (8, Completed("a")), (8, Completed("b")))[-1] == Finish(("a", "b"), "deadline")


# ---- ceiling ----


def trickle(device: str, until: int) -> list[tuple[float, RoundEvent]]:
    """Progress for ever."""
    return [(now, Progressed(device)) for now in range(until)]


def test_progress_for_ever_ends_at_the_ceiling_and_the_others_are_merged() -> None:
    m = machine("a", "b", ceiling_s=50)
    assert play(m, *work("b", 1), (1, Delivered("a")), *trickle("a", 50)) == []
    assert m.wakeup(49.0) == 50
    leave, finish = play(m, (50, Tick()))
    assert isinstance(leave, Leave)
    assert (leave.device, leave.how, leave.limit_s) == ("a", "late", 50.0)
    assert "ceiling of 50 s was reached (" in leave.why
    assert finish == Finish(("b",), "deadline")


def test_who_only_says_that_it_makes_progress_is_not_waited_for_up_to_the_ceiling() -> None:
    m = machine("a", "b", ceiling_s=21_600, liveness_s=2)
    assert play(m, *work("b", 1), (1, Delivered("a")), *trickle("a", 100)) == []
    assert m.wakeup(99.5) == 100
    leave, finish = play(m, (100, Tick()))
    assert isinstance(leave, Leave)
    assert (leave.device, leave.how, leave.limit_s) == ("a", "late", 100.0)
    assert "half of its devices took 1 s" in leave.why
    assert finish == Finish(("b",), "deadline")


def test_a_slow_device_that_is_waited_for_because_few_are_done() -> None:
    m = machine("a", "b", "c", ceiling_s=21_600, liveness_s=2)
    assert play(m, *work("b", 1), (1, Delivered("a")), (1, Delivered("c"))) == []
    events = sorted([*trickle("a", 400), *trickle("c", 400)], key=lambda each: each[0])
    assert play(m, *events) == []
    assert play(m, *work("c", 400), *[each for each in trickle("a", 500) if each[0] > 400]) == []


def test_the_ceiling_ends_a_round_whose_quorum_will_not_come() -> None:
    m = machine("a", "b", deadline_s=10, quorum=2, ceiling_s=50)
    assert play(m, *work("b", 1), (1, Delivered("a")), *trickle("a", 50)) == []
    assert play(m, (50, Tick()))[-1] == Finish((), "void")


def test_an_update_that_is_here_at_the_ceiling_is_still_finished_by_the_server() -> None:
    """A group's server half waits for the one that trickles; when that has left, the others' work counts."""
    m = machine("a", "b", ceiling_s=50)
    assert play(m, (1, Delivered("b")), (2, Updated("b")), (1, Delivered("a")), *trickle("a", 50)) == []
    assert [type(e) for e in play(m, (50, Tick()))] == [Leave]
    assert m.wakeup(51.0) is None, "only the server's own work is waited for"
    assert play(m, (60, Completed("b"))) == [Finish(("b",), "deadline")]


def test_whom_a_server_half_keeps_waiting_is_not_to_blame_at_the_ceiling() -> None:
    """A half that is one for all waits for the next batch of the one that trickles; the others stand still for it."""
    m = machine("a", "b", "c", ceiling_s=50, liveness_s=1000)
    play(m, *((1, Delivered(device)) for device in "abc"), (2, Held("b", True)), (3, Held("c", True)))
    leave, *others = play(m, (50, Tick()))
    assert isinstance(leave, Leave)
    assert (leave.device, others) == ("a", [])
    assert m.wakeup(51.0) == 100, "who had to wait gets as long again"
    play(m, (52, Held("b", False)), (52, Held("c", False)), (60, Updated("b")), (61, Completed("b")))
    leave, finish = play(m, (100, Tick()))
    assert isinstance(leave, Leave)
    assert (leave.device, leave.limit_s, finish) == ("c", 100.0, Finish(("b",), "deadline"))
    assert "ceiling of 50 s was reached again, 100 s after its start" in leave.why


def test_a_second_ceiling_counts_from_when_the_first_was_noticed() -> None:
    m = RoundMachine("ab", 7.0, deadline_s=None, quorum=1, liveness_s=1000.0, ceiling_s=50.0)
    play(m, (8, Delivered("a")), (8, Delivered("b")), (9, Held("b", True)), (59, Tick()))
    assert m.wakeup(59.0) == 109
    leave, _ = play(m, (110, Tick()))
    assert isinstance(leave, Leave)
    assert leave.limit_s == 109 - 7


def test_where_all_wait_for_the_server_the_ceiling_ends_the_round() -> None:
    m = machine("a", "b", ceiling_s=50, liveness_s=1000)
    play(m, (1, Delivered("a")), (1, Delivered("b")), (2, Held("a", True)), (2, Held("b", True)))
    assert play(m, (50, Tick()))[-1] == Finish((), "void")


def test_the_next_tick_is_due_for_the_device_that_has_been_silent_longest() -> None:
    m = machine("a", "b", "c", liveness_s=10)
    play(m, (1, Delivered("a")), (2, Delivered("b")), (3, Progressed("c")), (4, Progressed("a")))
    assert m.wakeup(4) == 12
    play(m, (5, Updated("b")))
    assert m.wakeup(5) == 13
    play(m, (6, Dropped("c", "failed", "")), (7, Updated("a")))
    assert m.wakeup(7) is None, "nobody is at work"


# ---- the run's budget of seconds ----


def test_at_the_end_of_the_budget_devices_at_work_are_out_and_nothing_is_merged() -> None:
    m = machine("a", "b", "c", ends=5.0)
    assert m.wakeup(0.0) == 5.0
    effects = play(m, *work("a", 1), (2, Updated("b")), (4.9, Tick()), (5.0, Tick()))
    out, finish = effects[:-1], effects[-1]
    assert [(each.device, each.how, each.limit_s) for each in out if isinstance(each, Leave)] == [
        ("b", "late", 5.0),
        ("c", "late", 5.0),
    ]
    assert finish == Finish((), "budget")
    assert m.wakeup(5.0) is None


@pytest.mark.parametrize("at", [1.0, 4.9])
def test_a_round_that_is_over_by_then_is_merged(at: float) -> None:
    assert play(machine("a", ends=5.0), *work("a", at)) == [Finish(("a",), "all done")]


def test_a_deadline_before_the_end_of_the_budget_still_merges() -> None:
    m = machine("a", "b", deadline_s=3.0, ends=5.0)
    assert play(m, *work("a", 1), (3.0, Tick()))[-1] == Finish(("a",), "deadline")


def test_a_budget_that_is_spent_before_a_round_ends_it_at_once() -> None:
    effects = play(machine("a", ends=-1.0), (0.0, Tick()))
    assert effects[-1] == Finish((), "budget")
    assert [each.limit_s for each in effects if isinstance(each, Leave)] == [0.0]
