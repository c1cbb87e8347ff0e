"""The graph of jobs: its critical path adds up, and a walk with some jobs faster gives what a schedule would."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.records.critical.event_graph import Bound, EventGraph, Plan, sums, whole

A, B, C = Bound("cpu", "a"), Bound("uplink", "a"), Bound("server")
BOUNDS = (A, B, C)


def graph(*jobs: tuple[str, int, Bound, tuple[str, ...]], slots: int = 0) -> EventGraph:
    """Jobs (name, end, bound, before); those of the server take a slot. The last one is the end."""
    plans = {name: Plan(end, before, whole(bound), slot=bound is C, start_ns=end) for name, end, bound, before in jobs}
    return EventGraph(plans, 0, jobs[-1][0], slots)


def lengths(found: EventGraph) -> list[tuple[str, int]]:
    return [(segment.bound.what, segment.end_ns - segment.start_ns) for segment in found.path()]


def half(*what: str):  # type: ignore[no-untyped-def]
    return lambda bound: 0.5 if bound.what in what else 1.0


def test_the_path_goes_to_the_job_before_that_ended_last() -> None:
    found = graph(("x", 30, A, ()), ("y", 70, B, ()), ("end", 100, A, ("x", "y")))
    assert lengths(found) == [("uplink", 70), ("cpu", 30)]
    assert found.replayed_ns(half("uplink")) == 35 + 30
    assert found.replayed_ns(half("cpu")) == 70 + 15
    assert found.replayed_ns(half("cpu", "uplink")) == 50


def test_the_path_moves_to_what_is_next() -> None:
    """Twice the uplink saves no more than until the other job, which took 60."""
    found = graph(("x", 60, A, ()), ("y", 100, B, ()), ("end", 110, C, ("x", "y")))
    assert found.replayed_ns(half("uplink")) == 60 + 10


def test_a_job_without_a_slot_waits_for_the_one_that_has_it() -> None:
    """Two halves of 40 are ready at 10 and at 20, one slot: the second works from 50 to 90."""
    found = graph(
        ("up1", 10, B, ()),
        ("up2", 20, B, ()),
        ("one", 50, C, ("up1",)),
        ("two", 90, C, ("up2",)),
        ("end", 100, A, ("one", "two")),
        slots=1,
    )
    assert lengths(found) == [("uplink", 10), ("turn", 40), ("server", 40), ("cpu", 10)]
    assert found.replayed_ns(lambda bound: 1.0) == 100
    assert found.replayed_ns(half("server")) == 10 + 20 + 20 + 10
    without = graph(("up2", 20, B, ()), ("two", 90, C, ("up2",)), ("end", 100, A, ("two",)))
    assert lengths(without) == [("uplink", 20), ("server", 70), ("cpu", 10)]


def test_near_ties_are_paths_that_end_a_little_earlier() -> None:
    found = graph(("x", 96, A, ()), ("y", 100, B, ()), ("z", 80, C, ()), ("end", 100, B, ("x", "y", "z")))
    assert found.near(5) == {A: 96}
    assert found.near(20) == {A: 96, C: 80}
    assert found.near(3) == {}


def test_a_job_on_another_clock_never_ends_after_what_it_made_possible() -> None:
    found = graph(("work", 57, A, ()), ("arrived", 50, B, ("work",)), ("end", 60, C, ("arrived",)))
    assert lengths(found) == [("cpu", 50), ("server", 10)]


def test_the_path_to_a_job_can_begin_later() -> None:
    found = graph(("x", 30, A, ()), ("y", 70, B, ("x",)), ("end", 100, A, ("y",)))
    assert [(s.bound.what, s.start_ns, s.end_ns) for s in found.path("y", 20)] == [("cpu", 20, 30), ("uplink", 30, 70)]
    assert found.path("nobody") == []


def test_jobs_in_a_circle_are_refused() -> None:
    with pytest.raises(ValueError, match="wait for each other"):
        graph(("x", 1, A, ("y",)), ("y", 2, A, ("x",)), ("end", 3, A, ("y",)))


@st.composite
def random_graphs(draw: st.DrawFn) -> EventGraph:
    """Any recorded times, also ones that contradict each other."""
    count = draw(st.integers(1, 30))
    jobs = []
    for i in range(count):
        before = tuple(f"j{k}" for k in draw(st.sets(st.integers(0, max(0, i - 1)), max_size=3)) if k < i)
        jobs.append((f"j{i}", draw(st.integers(0, 1000)), draw(st.sampled_from(BOUNDS)), before))
    return graph(*jobs, slots=draw(st.integers(0, 3)))


@settings(max_examples=100, deadline=None)
@given(random_graphs())
def test_segments_abut_and_add_up_whatever_the_times(found: EventGraph) -> None:
    path = found.path()
    at = found.start_ns
    for segment in path:
        assert segment.start_ns == at
        assert segment.end_ns > segment.start_ns
        at = segment.end_ns
    assert at == found.end_ns
    assert sum(sums(path).values()) == found.end_ns - found.start_ns


@st.composite
def schedules(draw: st.DrawFn) -> tuple[EventGraph, EventGraph]:
    """A schedule without slots that really took place, and the same with the CPU twice as fast."""
    lengths = draw(st.lists(st.integers(0, 200), min_size=1, max_size=25))
    bounds = [draw(st.sampled_from((A, B))) for _ in lengths]
    before = [
        tuple(k for k in draw(st.sets(st.integers(0, max(0, i - 1)), max_size=3)) if k < i) for i in range(len(lengths))
    ]

    def played(faster: bool) -> EventGraph:
        ends: list[int] = []
        for i, length in enumerate(lengths):
            took = 2 * length if not faster or bounds[i] is B else length
            ends.append(took + max((ends[k] for k in before[i]), default=0))
        return graph(*((f"j{i}", ends[i], bounds[i], tuple(f"j{k}" for k in before[i])) for i in range(len(ends))))

    return played(False), played(True)


@settings(max_examples=100, deadline=None)
@given(schedules())
def test_what_if_is_what_would_have_been(pair: tuple[EventGraph, EventGraph]) -> None:
    before, after = pair
    assert before.replayed_ns(lambda bound: 1.0) == before.end_ns
    assert before.replayed_ns(half("cpu")) == after.end_ns
