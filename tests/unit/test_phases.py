"""The phase log: no gap, no overlap, nothing lost before it is acknowledged."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from edge_agent.telemetry import CpuUsage
from edgebed.device.phases import MOST_PER_STATUS, PhaseLog


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


def log() -> tuple[PhaseLog, Clock]:
    clock = Clock()
    return PhaseLog(clock, CpuUsage(clock)), clock


@given(st.lists(st.tuples(st.integers(0, 1000), st.sampled_from(["waiting", "compute", "encode"])), max_size=50))
def test_phases_follow_one_another_without_gap(steps: list[tuple[int, str]]) -> None:
    phases, clock = log()
    for delta, name in steps:
        clock.now += delta
        phases.enter(name, "t")
    phases.split()
    _, closed = phases.pending()
    assert closed[0].start_ns == 0
    assert closed[-1].end_ns == clock.now
    assert all(a.end_ns == b.start_ns for a, b in itertools.pairwise(closed))
    assert sum(p.cpu_ns for p in closed) == clock.now


def test_a_phase_stays_until_it_is_acknowledged() -> None:
    phases, clock = log()
    for name in ("download", "decode", "compute"):
        clock.now += 1
        phases.enter(name)
    assert phases.pending()[0] == 0
    phases.seen(2)
    first, rest = phases.pending()
    assert first == 2
    assert [p.name for p in rest] == ["decode"]
    phases.seen(1)  # late: changes nothing
    assert phases.pending()[0] == 2


def test_entering_the_open_phase_again_changes_nothing() -> None:
    phases, _ = log()
    phases.enter("compute", "t")
    assert phases.enter("compute", "t") == "compute"
    assert len(phases.pending()[1]) == 1


def test_a_status_carries_a_bounded_number() -> None:
    phases, clock = log()
    for i in range(2 * MOST_PER_STATUS):
        clock.now += 1
        phases.enter(("compute", "encode")[i % 2])
    assert len(phases.pending()[1]) == MOST_PER_STATUS


def test_throttling_is_counted_in_the_phase_in_which_it_was() -> None:
    clock, counters = Clock(), [(0, 0)]
    phases = PhaseLog(clock, CpuUsage(clock, lambda: counters[-1]))
    phases.enter("compute")
    counters.append((5_000, 2))
    phases.enter("encode")
    phases.split()
    assert [(p.name, p.throttled_ns, p.throttled) for p in phases.pending()[1]] == [
        ("waiting", 0, 0),
        ("compute", 5_000, 2),
        ("encode", 0, 0),
    ]


def test_taking_leaves_nothing_behind_and_no_phase_without_length() -> None:
    phases, clock = log()
    phases.enter("decode", "t")
    clock.now += 3
    phases.enter("compute")
    clock.now += 2
    assert [(p.name, p.task, p.start_ns, p.end_ns) for p in phases.take()] == [
        ("decode", "t", 0, 3),
        ("compute", "t", 3, 5),
    ]
    assert phases.take() == ()
    clock.now += 1
    assert [p.name for p in phases.take()] == ["compute"]
