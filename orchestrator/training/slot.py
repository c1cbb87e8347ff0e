"""A slot of a paced server: one thread, with a hold of its own (`edgebed.pacing`), and the reference that it keeps."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec

from edgebed.device.pieces import BY_INDEX
from edgebed.pacing import Pacer
from edgebed.wire.messages import Assignment, Cost
from orchestrator.records.host_records import Spent
from orchestrator.training.orders import Settle

T = TypeVar("T")
Piece = Callable[[], tuple[T, int, dict[str, float] | None]]
"""Does an order's work: its result, the samples that it trained on, and CPU seconds on the reference by the origin of
their costs; None where no costs are known."""


class HeldTo(msgspec.Struct, frozen=True):
    """The reference to which a server is held."""

    # what the pieces of a device's half cost there, by kind: of a method's name and the assignment
    costs: Callable[[str, Assignment], dict[str, Cost]]
    index: float  # CPU seconds of the reference for one of this host, for the rest

    def halves(self, method: str, assignments: Mapping[str, Assignment]) -> dict[str, dict[str, Cost]]:
        """The costs by device."""
        return {device: self.costs(method, assignment) for device, assignment in assignments.items()}


class Slot:
    """Made by the thread itself, whose CPU time it reads."""

    def __init__(self, settings: Settle) -> None:
        self._index, self._pacer, self._counted_s = settings.index, Pacer(cpu=time.thread_time), time.thread_time()
        self._pacer.set(settings.paced_cpus, settings.period_s, by_reference=settings.index > 0)

    def carry_out(self, arrived_s: float, piece: Piece[T]) -> tuple[T, Spent]:
        """Do a piece of work, and return when a server of the slot's CPUs would have done it. It begins when the order
        arrived, or where the piece before ended. `arrived_s`: clock seconds."""
        self._pacer.idle_until(arrived_s)
        result, samples, known = piece()
        before, self._counted_s = self._counted_s, time.thread_time()
        cpu_s = self._counted_s - before
        reference_s = {} if not self._index else {BY_INDEX: cpu_s * self._index} if known is None else known
        self._pacer.charge(sum(reference_s.values()))
        late_s = self._pacer.hold(time.sleep)
        return result, Spent(cpu_s, samples, reference_s, late_s if self._index else 0.0)
