"""CPU seconds to wall seconds: by plain division, or under a quota as the Linux scheduler holds it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Protocol

PERIOD_S = 0.1
"""CFS period (`orchestrator.fleet.throttle`)."""

TICK_S = 0.004
"""A thread that has used its quota up runs on until the next scheduler tick (250 Hz); what it took too much is kept
back from the next periods."""


MARGIN_S = 1e-6
"""A sleep to the next period ends surely within it."""


URGENT_S = 0.0005
"""How often a thread looks whether a more urgent one is done."""


class Cpu(Protocol):
    """Where a device's threads get their CPU time."""

    async def use(self, seconds: float, *, urgent: bool = False) -> None:
        """Returns when so many CPU seconds have been had. `urgent` goes first: a thread that mostly sleeps gets the CPU
        as soon as it wakes."""


class PlainCpu:
    """Seconds ÷ CPUs, as the papers' formulas have it."""

    def __init__(self, cpus: Callable[[], float]) -> None:
        self._cpus = cpus

    async def use(self, seconds: float, *, urgent: bool = False) -> None:
        await asyncio.sleep(seconds / self._cpus())


class QuotaCpu:
    """A quota of `cpus` × 100 ms in every period of 100 ms, shared by all threads of the device.

    While the account is positive a thread runs at full speed; when it is empty all stop until the next period that
    makes it positive. So a burst that fits into a quota is quick, and a long one advances in steps. An idle account is
    full.

    Args:
        threads: over how many the work of one call is spread.
        phase: when within a period this device's periods begin, as a share.
    """

    def __init__(
        self, cpus: Callable[[], float], threads: Callable[[], int], now_s: Callable[[], float], phase: float
    ) -> None:
        self._cpus, self._threads, self._now_s, self._phase = cpus, threads, now_s, phase * PERIOD_S
        self._balance_s, self._period, self._urgent = 0.0, -1, 0

    async def use(self, seconds: float, *, urgent: bool = False) -> None:
        self._urgent += urgent
        try:
            await self._use(seconds, urgent)
        finally:
            self._urgent -= urgent

    async def _use(self, seconds: float, urgent: bool) -> None:
        left = seconds
        while left > 1e-12:
            self._refill()
            if self._balance_s <= 0:
                await asyncio.sleep(self._until_next())
                continue
            if self._urgent and not urgent:
                await asyncio.sleep(URGENT_S)
                continue
            burst = min(left, self._slice())
            self._balance_s -= burst
            left -= burst
            await asyncio.sleep(burst / self._threads())

    def _slice(self) -> float:
        """What may be used before the account is looked at again: up to the tick after it is empty, or to the end of
        the period."""
        threads = self._threads()
        until_empty = max(1, math.ceil(self._balance_s / threads / TICK_S - 1e-9)) * TICK_S
        return min(until_empty, max(TICK_S, self._until_next())) * threads

    def _refill(self) -> None:
        """An account takes one quota at most, however long it was idle; what it owes is paid period by period."""
        period = math.floor((self._now_s() - self._phase) / PERIOD_S)
        if period > self._period:
            quota = self._cpus() * PERIOD_S
            self._balance_s = min(quota, self._balance_s + quota * (period - self._period))
            self._period = period

    def _until_next(self) -> float:
        return (self._period + 1) * PERIOD_S + self._phase - self._now_s() + MARGIN_S
