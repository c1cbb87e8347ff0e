"""Sleep that ends early when the device changes, and the virtual seconds of CPU seconds: divided by the device's CPUs,
which may change meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Pace:
    """Lets virtual time pass for work whose speed may change meanwhile."""

    def __init__(self) -> None:
        self._sleepers: dict[asyncio.Future[bool], None] = {}  # in the order in which they began

    async def sleep(self, seconds: float | None) -> bool:
        """Sleep so long, or without an end. True: `changed` has ended it."""
        if seconds is not None and seconds <= 0:
            await asyncio.sleep(0)
            return False
        loop = asyncio.get_running_loop()
        sleeper: asyncio.Future[bool] = loop.create_future()
        timer = None if seconds is None else loop.call_later(seconds, _end, sleeper, False)
        self._sleepers[sleeper] = None
        try:
            return await sleeper
        finally:
            del self._sleepers[sleeper]
            if timer is not None:
                timer.cancel()

    def changed(self) -> None:
        """End every sleep."""
        for sleeper in tuple(self._sleepers):
            _end(sleeper, True)


def _end(sleeper: asyncio.Future[bool], changed: bool) -> None:
    if not sleeper.done():
        sleeper.set_result(changed)


class Cpu:
    """Gives a device's training its CPU time, one piece of work at a time. `cpus`: that the device has now; 0 while it
    stands still."""

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
