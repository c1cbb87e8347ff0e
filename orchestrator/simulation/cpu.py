"""Converts CPU seconds to wall seconds: by division, or under a quota as the Linux scheduler enforces it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Protocol

from edgebed.limits.cpu_quota import PERIOD_US, TICK_US
from orchestrator.simulation.pace import Pace

PERIOD_S = PERIOD_US / 1e6
"""The usual CFS period (`edgebed.limits.cpu_quota`)."""

TICK_S = TICK_US / 1e6
"""Length of a scheduler tick (250 Hz). A thread that has used its quota up runs on until the next tick; the excess is
taken from the next periods."""


MARGIN_S = 1e-6
"""Added to a sleep until the next period, so that the sleep certainly ends within it."""


URGENT_S = 0.0005
"""How often a thread checks whether a more urgent one is done."""


class Cpu(Protocol):
    """Gives a device's threads their CPU time."""

    async def use(self, seconds: float, *, urgent: bool = False) -> None:
        """Return when the caller has had so many CPU seconds. `urgent` goes first, like a thread that mostly sleeps and
        gets the CPU as soon as it wakes."""

    def changed(self) -> None:
        """The device has other CPUs now: work in hand goes on at the new speed."""

    def take_left(self) -> float | None:
        """CPU seconds that the work in hand that is not urgent has not had yet; None where there is none. The caller
        cancels it."""

    def state(self) -> list[float]:
        """What the time of later work depends on, with no work in hand."""

    def restore(self, state: Sequence[float]) -> None:
        """Take back what `state` gave."""


class PlainCpu:
    """CPU seconds divided by CPUs, as in the papers' formulas. Callers share the CPUs: urgent work first, and equals
    get equal shares."""

    def __init__(self, cpus: Callable[[], float]) -> None:
        self._cpus, self._pace = cpus, Pace()
        self._callers = {True: 0, False: 0}  # by `urgent`
        self._in_hand: tuple[float, float, float] | None = None  # CPU seconds left at a time of the loop, and CPUs

    async def use(self, seconds: float, *, urgent: bool = False) -> None:
        if seconds <= 0:
            return
        self._enter(urgent, 1)
        try:
            await self._use(seconds, urgent)
        finally:
            self._enter(urgent, -1)
            self._in_hand = self._in_hand if urgent else None

    async def _use(self, seconds: float, urgent: bool) -> None:
        left, loop = seconds, asyncio.get_running_loop()
        while True:
            start_s, speed = loop.time(), self._speed(urgent)
            self._in_hand = self._in_hand if urgent else (left, start_s, speed)
            if not await self._pace.sleep(left / speed if speed else None):
                return
            left = max(0.0, left - (loop.time() - start_s) * speed)

    def _speed(self, urgent: bool) -> float:
        """CPUs of one caller now."""
        return 0.0 if self._callers[True] and not urgent else self._cpus() / self._callers[urgent]

    def _enter(self, urgent: bool, count: int) -> None:
        self._callers[urgent] += count
        self._pace.changed()

    def changed(self) -> None:
        self._pace.changed()

    def take_left(self) -> float | None:
        if self._in_hand is None:
            return None
        left, start_s, speed = self._in_hand
        return max(0.0, left - (asyncio.get_running_loop().time() - start_s) * speed)

    def state(self) -> list[float]:
        return []

    def restore(self, state: Sequence[float]) -> None:
        """Nothing is remembered."""


class QuotaCpu:
    """A quota of `cpus` × `period_s` in every period, shared by all threads of the device.

    While quota is left, a thread runs at full speed. When it is used up, all threads stop until a later period has
    quota left again. So work that fits into one quota is fast, and longer work advances in steps. After an idle time
    one full quota is available.

    Args:
        threads: number of threads among which the work of one call is divided.
        phase: start of this device's periods, as a share of a period.
        period_s: seconds of a period.
    """

    def __init__(
        self,
        cpus: Callable[[], float],
        threads: Callable[[], int],
        now_s: Callable[[], float],
        phase: float,
        period_s: float = PERIOD_S,
    ) -> None:
        self._cpus, self._threads, self._now_s, self._phase = cpus, threads, now_s, phase * period_s
        self._period_s = period_s
        self._balance_s, self._period, self._urgent = 0.0, -1, 0
        self._in_hand: tuple[float, float] | None = None  # CPU seconds left after a burst, and when it ends

    async def use(self, seconds: float, *, urgent: bool = False) -> None:
        self._urgent += urgent
        try:
            await self._use(seconds, urgent)
        finally:
            self._urgent -= urgent
            self._in_hand = self._in_hand if urgent else None

    def changed(self) -> None:
        """Nothing: every period begins with the quota that is in force."""

    def take_left(self) -> float | None:
        """What is left of a burst goes back to the quota."""
        if self._in_hand is None:
            return None
        left, end_s = self._in_hand
        unused = max(0.0, end_s - self._now_s()) * self._threads()
        self._balance_s += unused
        return left + unused

    def state(self) -> list[float]:
        return [self._balance_s, self._period]

    def restore(self, state: Sequence[float]) -> None:
        self._balance_s, self._period = state[0], int(state[1])

    async def _use(self, seconds: float, urgent: bool) -> None:
        left = seconds
        while left > 1e-12:
            self._refill()
            self._in_hand = self._in_hand if urgent else (left, 0.0)
            if self._balance_s <= 0:
                await asyncio.sleep(self._until_next())
                continue
            if self._urgent and not urgent:
                await asyncio.sleep(URGENT_S)
                continue
            burst = min(left, self._slice())
            self._balance_s -= burst
            left -= burst
            self._in_hand = self._in_hand if urgent else (left, self._now_s() + burst / self._threads())
            await asyncio.sleep(burst / self._threads())

    def _slice(self) -> float:
        """CPU seconds to use before the quota is checked again: up to the tick after it is used up, or to the end of
        the period."""
        threads = self._threads()
        until_empty = max(1, math.ceil(self._balance_s / threads / TICK_S - 1e-9)) * TICK_S
        return min(until_empty, max(TICK_S, self._until_next())) * threads

    def _refill(self) -> None:
        """Add the quota of the periods that have passed. At most one quota is kept; a debt is paid period by period."""
        period = math.floor((self._now_s() - self._phase) / self._period_s)
        if period > self._period:
            quota = self._cpus() * self._period_s
            self._balance_s = min(quota, self._balance_s + quota * (period - self._period))
            self._period = period

    def _until_next(self) -> float:
        return (self._period + 1) * self._period_s + self._phase - self._now_s() + MARGIN_S
