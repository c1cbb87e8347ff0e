"""Converts CPU seconds to virtual seconds: divided by the device's CPUs, which may change meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from orchestrator.simulation.pace import Pace


class Cpu:
    """Gives a device's training its CPU time, one piece of work at a time.

    Args:
        cpus: that the device has now; 0 while it stands still.
    """

    def __init__(self, cpus: Callable[[], float]) -> None:
        self._cpus, self._pace = cpus, Pace()
        self._in_hand: tuple[float, float, float] | None = None  # CPU seconds left at a time of the loop, and CPUs

    async def use(self, seconds: float) -> None:
        """Return when the caller has had so many CPU seconds."""
        left, loop = seconds, asyncio.get_running_loop()
        try:
            while left > 0:
                start_s, cpus = loop.time(), self._cpus()
                self._in_hand = left, start_s, cpus
                if not await self._pace.sleep(left / cpus if cpus else None):
                    return
                left = max(0.0, left - (loop.time() - start_s) * cpus)
        finally:
            self._in_hand = None

    def changed(self) -> None:
        """The device has other CPUs now: work in hand goes on at the new speed."""
        self._pace.changed()

    def take_left(self) -> float | None:
        """CPU seconds that the work in hand has not had yet; None where there is none. The caller cancels it."""
        if self._in_hand is None:
            return None
        left, start_s, cpus = self._in_hand
        return max(0.0, left - (asyncio.get_running_loop().time() - start_s) * cpus)
