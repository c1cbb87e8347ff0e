"""A server's slot, and what its pieces cost on a reference."""

from __future__ import annotations

import time
from typing import Any

import pytest

from edgebed.wire.messages import Assignment, Cost
from orchestrator.training.child import on_reference
from orchestrator.training.orders import Settle
from orchestrator.training.slot import HeldTo, Slot

COSTS = {"a": {"step": Cost(((0.0, 0.0), (10.0, 0.1))), "make": Cost(((1.0, 0.03),), "layers")}}


def done(samples: int = 0, known: dict[str, float] | None = None) -> tuple[str, int, dict[str, float] | None]:
    return "done", samples, known


def test_a_slot_takes_the_time_of_its_reference() -> None:
    slot, begun = Slot(Settle(1, 0.5, index=1.0)), time.monotonic()
    result, spent = slot.carry_out(begun, lambda: done(32, {"recorded": 0.05, "layers": 0.05}))
    assert time.monotonic() - begun >= 0.2
    assert (result, spent.samples, spent.reference_s) == ("done", 32, {"recorded": 0.05, "layers": 0.05})
    assert spent.cpu_s < 0.1


def test_two_slots_hold_each_for_itself() -> None:
    begun = time.monotonic()
    one, two = Slot(Settle(2, 0.5, index=1.0)), Slot(Settle(2, 0.5, index=1.0))
    one.carry_out(begun, lambda: done(known={"recorded": 0.05}))
    two.carry_out(begun, lambda: done(known={"recorded": 0.05}))
    assert time.monotonic() - begun >= 0.1
    _, spent = two.carry_out(time.monotonic(), lambda: done(known={"recorded": 0.0}))
    assert spent.reference_s == {"recorded": 0.0}


def busy(cpu_s: float) -> None:
    end = time.thread_time() + cpu_s
    while time.thread_time() < end:
        pass


def test_a_piece_of_which_no_cost_is_known_counts_by_the_index() -> None:
    def work() -> tuple[str, int, dict[str, float] | None]:
        busy(0.02)
        return done()

    begun = time.monotonic()
    _, spent = Slot(Settle(1, 1.0, index=4.0)).carry_out(begun, work)
    assert spent.cpu_s >= 0.02
    assert spent.reference_s == {"index": pytest.approx(4 * spent.cpu_s)}
    assert time.monotonic() - begun >= 0.08


@pytest.mark.parametrize(("index", "least_s"), [(1.0, 0.08), (0.0, 0.0)])
def test_a_piece_that_takes_longer_than_on_the_reference_is_late(index: float, least_s: float) -> None:
    def work() -> tuple[str, int, dict[str, float] | None]:
        busy(0.1)
        return done(known={"recorded": 0.02})

    _, spent = Slot(Settle(1, 1.0, index=index)).carry_out(time.monotonic(), work)
    assert spent.late_s >= least_s
    assert bool(spent.late_s) == bool(index)  # one that keeps no reference's time is never late


@pytest.mark.parametrize(
    ("pieces", "found"),
    [
        ([("a", "step", 10), ("a", "step", 5)], {"recorded": pytest.approx(0.15)}),
        ([("a", "step", 10), ("a", "make", 1)], {"recorded": 0.1, "layers": 0.03}),
        ([("a", "step", 10), ("a", "read", 1)], None),
        ([("b", "step", 10)], None),
        ([], {}),
    ],
)
def test_pieces_are_added_up_by_origin(pieces: list[tuple[str, str, int]], found: Any) -> None:
    assert on_reference(COSTS, pieces) == found


def test_costs_are_asked_for_by_method_and_assignment() -> None:
    asked = []

    def costs(method: str, assignment: Assignment) -> dict[str, Cost]:
        asked.append((method, assignment.device))
        return COSTS["a"]

    assignment = Assignment("a", {"name": "resnet-tiny"}, 10, (1, 8, 8), 3, "head")
    assert HeldTo(costs, 1.0).halves("dtfl", {"a": assignment}) == COSTS
    assert asked == [("dtfl", "a")]
