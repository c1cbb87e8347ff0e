"""Pacing: an event is seen no earlier than CPU time ÷ CPUs after its unit of work began."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgebed.pacing import LATE_S, Earned, Pacer


class World:
    """A wall clock and a CPU clock that only the test moves."""

    def __init__(self, cpus: float) -> None:
        self.now = self.cpu = 0.0
        self.pacer = Pacer(lambda: self.now, lambda: self.cpu)
        self.pacer.set(cpus)
        self.waits: list[float] = []

    def work(self, cpu_s: float, wall_s: float | None = None) -> None:
        self.cpu += cpu_s
        self.now += cpu_s if wall_s is None else wall_s

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds

    def event(self) -> float:
        self.pacer.hold(self.sleep)
        return self.now


def test_work_that_the_quota_did_not_stop_is_held() -> None:
    world = World(0.1)
    world.work(0.010)
    assert world.event() == pytest.approx(0.1)
    assert sum(world.waits) == pytest.approx(0.09)


def test_the_cpu_time_that_a_reply_takes_to_arrive_is_held_after_the_wait() -> None:
    world = World(0.1)
    world.work(0.001)  # the upload is sent
    sent_s = world.cpu
    world.work(0.0, wall_s=1.0)
    world.work(0.002)  # the reply arrives
    arrived = world.now
    world.pacer.hold(world.sleep, waited=True, used_s=sent_s)
    assert world.now == arrived
    world.work(0.003)
    assert world.event() == pytest.approx(arrived + (0.002 + 0.003) / 0.1)


def test_a_wait_shorter_than_the_work_before_it_is_held_for_that_work_once() -> None:
    world = World(0.1)
    world.work(0.010)
    sent_s = world.cpu
    world.work(0.002)
    world.pacer.hold(world.sleep, waited=True, used_s=sent_s)
    assert world.now == pytest.approx(0.1)
    assert world.event() == pytest.approx(0.12)


def test_work_that_the_quota_did_stop_is_not_held_again() -> None:
    world = World(0.1)
    world.work(0.010, wall_s=0.2)
    assert world.event() == 0.2
    assert world.waits == []


def test_a_wait_in_an_earlier_unit_gives_no_credit() -> None:
    world = World(0.1)
    world.work(0.0, wall_s=5.0)  # waiting for a reply
    world.event()
    world.work(0.010)
    assert world.event() == pytest.approx(5.1)


def test_a_hold_that_ends_late_does_not_delay_the_next_unit() -> None:
    world = World(0.1)
    world.work(0.010)
    world.pacer.hold(lambda seconds: world.sleep(seconds + 0.05))
    assert world.now == pytest.approx(0.15)
    world.work(0.010)
    assert world.event() == pytest.approx(0.2)


def test_only_a_short_delay_is_made_up_for() -> None:
    world = World(0.1)
    world.work(0.010)
    world.pacer.hold(lambda seconds: world.sleep(seconds + 5.0))
    world.work(0.020)
    assert world.event() == pytest.approx(5.1 - LATE_S + 0.2)


def test_a_delay_of_one_period_of_the_quota_is_made_up_for() -> None:
    world = World(0.1)
    world.pacer.set(0.1, period_s=0.5)
    world.work(0.010)
    world.pacer.hold(lambda seconds: world.sleep(seconds + 0.4))
    world.work(0.050)
    assert world.event() == pytest.approx(0.1 + 0.5)


def test_cpu_time_used_during_the_hold_counts_in_the_next_unit() -> None:
    world = World(0.1)
    world.work(0.010)

    def busy(seconds: float) -> None:
        world.sleep(seconds)
        world.cpu += 0.005  # the event loop sends a chunk meanwhile

    world.pacer.hold(busy)
    assert world.now == pytest.approx(0.1)
    assert world.event() == pytest.approx(0.15)


def test_a_hold_whose_waits_use_cpu_time_themselves_ends() -> None:
    world = World(0.05)
    world.work(0.010)

    def wait(seconds: float) -> None:
        assert len(world.waits) < 3
        world.sleep(seconds)
        world.cpu += 0.0001

    world.pacer.hold(wait)
    assert world.now == pytest.approx(0.2)


def test_without_pacing_nothing_is_held() -> None:
    world = World(0.0)
    world.work(1.0)
    assert world.event() == 1.0
    assert world.waits == []


def test_a_unit_begins_where_it_is_said_to() -> None:
    world = World(0.5)
    world.work(1.0)
    world.pacer.begin()
    world.work(0.1)
    assert world.event() == pytest.approx(1.2)


def test_work_that_came_later_begins_when_it_came() -> None:
    world = World(0.1)
    world.now = 5.0
    world.pacer.idle_until(4.9)
    world.work(0.010)
    assert world.event() == pytest.approx(5.01)  # it came at 4.9: 0.1 s are over
    world.pacer.idle_until(4.95)  # it waited for its turn
    world.work(0.010)
    assert world.event() == pytest.approx(5.11)


def test_cpu_time_before_the_work_came_counts_in_it() -> None:
    world = World(0.1)
    world.event()
    world.cpu += 0.005  # the answer to the work before is written
    world.now = 2.0
    world.pacer.idle_until(2.0)
    world.work(0.010)
    assert world.event() == pytest.approx(2.15)


@given(st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 3.0)), min_size=1, max_size=20), st.floats(0.01, 2.0))
def test_no_event_comes_before_its_work_could_be_done(units: list[tuple[float, float]], cpus: float) -> None:
    world = World(cpus)
    for cpu_s, waited_s in units:
        begun = world.now
        world.work(cpu_s, wall_s=cpu_s + waited_s)
        assert world.event() >= begun + cpu_s / cpus - 1e-6


# ---- by a reference ----


class Held(World):
    """A device of so many CPUs of a reference."""

    def __init__(self, cpus: float) -> None:
        super().__init__(cpus)
        self.pacer.set(cpus, by_reference=True)
        self.pacer.begin()

    def piece(self, reference_s: float, wall_s: float = 0.0) -> float:
        self.work(wall_s)
        self.pacer.charge(reference_s)
        return self.event()


def test_an_event_comes_when_the_reference_would_have_finished() -> None:
    world = Held(0.2)
    assert world.piece(0.1, wall_s=0.3) == pytest.approx(0.5)
    assert world.piece(0.1, wall_s=0.01) == pytest.approx(1.0)
    assert world.pacer.late_s == pytest.approx(0.0)


def test_a_late_event_is_told_and_made_up_for() -> None:
    world = Held(0.5)
    assert world.piece(0.1, wall_s=0.25) == pytest.approx(0.25)  # due at 0.2
    assert world.pacer.late_s == pytest.approx(0.05)
    assert world.piece(0.1, wall_s=0.05) == pytest.approx(0.4)
    assert world.pacer.late_s == pytest.approx(0.0)


def test_what_cannot_be_made_up_for_stays_late() -> None:
    world = Held(0.5)
    world.piece(0.1, wall_s=1.2)  # due at 0.2
    assert world.pacer.late_s == pytest.approx(1.0)
    world.piece(0.1, wall_s=0.01)  # begins LATE_S back
    assert world.pacer.late_s == pytest.approx(1.0 - LATE_S)
    world.pacer.begin()
    assert world.pacer.late_s == 0.0


def test_a_wait_for_others_makes_nothing_late() -> None:
    world = Held(0.5)
    world.piece(0.1)
    world.now += 3.0
    world.pacer.hold(world.sleep, waited=True)
    assert world.piece(0.1) == pytest.approx(3.4)
    assert world.pacer.late_s == pytest.approx(0.0)


def test_what_was_late_before_a_wait_stays_late() -> None:
    world = Held(0.5)
    for _ in range(10):
        world.piece(0.1, wall_s=0.29)  # 0.09 s late
        world.now += 1.0
        world.pacer.hold(world.sleep, waited=True)
    assert world.pacer.late_s == pytest.approx(0.9)


def test_cpus_that_change_in_mid_unit_count_from_when_they_changed() -> None:
    world = Held(0.4)
    world.now = 50.0  # 20 CPU s are given
    world.pacer.set(0.1, by_reference=True)
    assert world.piece(25.0) == pytest.approx(100.0)


def test_five_cpu_seconds_of_one_speed_and_five_of_another() -> None:
    world = Held(0.4)
    world.now = 12.5
    world.pacer.set(0.1, by_reference=True)
    assert world.piece(10.0) == pytest.approx(62.5)


def test_a_device_that_stands_still_earns_nothing() -> None:
    world = Held(0.5)
    world.pacer.set(0.5, by_reference=True, share=0.0)
    world.now = 10.0
    world.pacer.set(0.5, by_reference=True)
    assert world.piece(0.5) == pytest.approx(11.0)


def test_a_device_that_stands_still_waits_until_it_goes_on() -> None:
    world = Held(0.5)
    world.pacer.set(0.5, by_reference=True, share=0.0)

    def wait(seconds: float) -> None:
        world.sleep(seconds)
        if world.now > 4.95:
            world.pacer.set(0.5, by_reference=True)

    world.pacer.charge(0.1)
    world.pacer.hold(wait)
    assert world.now == pytest.approx(5.2, abs=LATE_S)


@given(st.lists(st.tuples(st.floats(0.0, 0.5), st.floats(0.0, 1.0)), min_size=1, max_size=15), st.floats(0.05, 2.0))
def test_held_events_are_never_early_and_late_ones_are_told(units: list[tuple[float, float]], cpus: float) -> None:
    world = Held(cpus)
    due = lost = 0.0
    for reference_s, wall_s in units:
        due += reference_s / cpus
        ended = world.piece(reference_s, wall_s)
        assert ended == pytest.approx(max(due, world.now))
        assert world.pacer.late_s == pytest.approx(lost + max(0.0, ended - due), abs=1e-6)
        behind = max(0.0, ended - LATE_S - due)  # no more than LATE_S is made up for
        due, lost = due + behind, lost + behind


def test_what_was_lost_in_one_task_is_none_of_the_next_one() -> None:
    world = Held(0.5)
    world.piece(0.1, wall_s=1.2)
    world.piece(0.1, wall_s=0.2)
    world.pacer.begin()
    world.piece(0.1, wall_s=0.25)  # due 0.2 s after it began
    assert world.pacer.late_s == pytest.approx(0.05)


def test_an_event_tells_how_late_it_is_by_itself() -> None:
    world = Held(0.5)
    world.now += 0.25
    world.pacer.charge(0.1)
    assert world.pacer.hold(world.sleep) == pytest.approx(0.05)
    world.pacer.charge(0.1)  # made up for
    assert world.pacer.hold(world.sleep) == 0.0


def test_a_device_that_was_late_when_it_was_frozen_is_late() -> None:
    world = Held(0.5)
    world.now = 1.2  # due at 0.2
    world.pacer.charge(0.1)
    world.pacer.set(0.5, by_reference=True, share=0.0)
    assert world.pacer.hold(world.sleep) == pytest.approx(1.0)
    assert world.pacer.late_s == pytest.approx(1.0)


# ---- CPU seconds over time ----


def test_cpus_give_through_changes_and_rests() -> None:
    earned = Earned(0.0)
    for cpus, at in ((0.5, 10.0), (0.0, 20.0), (1.0, 30.0)):
        earned.set(cpus, at)
    assert [earned.given(at) for at in (5.0, 12.0, 25.0, 31.0)] == [0.0, 1.0, 5.0, 6.0]
    assert [earned.at(given) for given in (1.0, 5.0, 5.5)] == [12.0, 20.0, 30.5]


def test_what_is_never_given_is_due_at_no_time() -> None:
    earned = Earned(0.0)
    earned.set(0.5, 0.0)
    earned.set(0.0, 10.0)
    assert earned.at(5.1) == float("inf")


@given(st.lists(st.tuples(st.floats(0.1, 5.0), st.floats(0.1, 2.0)), min_size=1, max_size=8), st.floats(0.01, 30.0))
def test_the_moment_of_an_amount_is_when_it_is_given(changes: list[tuple[float, float]], given_s: float) -> None:
    earned, now = Earned(0.0), 0.0
    for after, cpus in changes:
        earned.set(cpus, now)
        now += after
    assert earned.given(earned.at(given_s)) == pytest.approx(given_s)
