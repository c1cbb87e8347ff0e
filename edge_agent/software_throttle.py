"""The software throttle: the agent limits its own CPU time and bytes where the kernel cannot.

It is less exact than the kernel's limits: CPU time is limited per batch, not per 100 ms, and only data are limited, not
control messages. All outputs call such limits `software`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

from edgebed.link.base import Handler, Link
from edgebed.wire.frames import WIRE_SHARE
from edgebed.wire.messages import Configure

CREDIT_S = 0.1
"""Seconds of unused CPU time that are kept for later. A quota of the kernel keeps one period, 0.1 s."""


class CpuGovernor:
    """A duty cycle: after using more CPU time than `cpus` allows, the process must sleep.

    Args:
        clock: monotonic seconds.
        cpu: CPU seconds of the process, all threads.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, cpu: Callable[[], float] = time.process_time
    ) -> None:
        self._clock, self._cpu = clock, cpu
        self._lock = threading.Lock()
        self._cpus = self._balance = 0.0
        self._at, self._used = clock(), cpu()

    def set(self, cpus: float) -> None:
        """From now on; 0 for no limit."""
        with self._lock:
            self._cpus, self._balance = cpus, 0.0
            self._at, self._used = self._clock(), self._cpu()

    def owed(self) -> float:
        """Seconds to sleep now to keep the limit."""
        with self._lock:
            if self._cpus <= 0:
                return 0.0
            now, used = self._clock(), self._cpu()
            earned = (now - self._at) * self._cpus
            self._balance = min(CREDIT_S * self._cpus, self._balance + earned - (used - self._used))
            self._at, self._used = now, used
            return max(0.0, -self._balance / self._cpus)


class TokenBucket:
    """A link with a rate in bytes per second, in the order of the bytes. `clock`: monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._rate = 0.0
        self._free = 0.0  # when the last byte handed over will have passed

    def set(self, bit_s: int) -> None:
        """From now on; 0 for no limit."""
        with self._lock:
            self._rate = bit_s / 8 * WIRE_SHARE

    @property
    def limited(self) -> bool:
        return self._rate > 0

    def delay(self, payload_bytes: int) -> float:
        """Seconds until these bytes, sent now after all earlier ones, have passed."""
        with self._lock:
            now = self._clock()
            self._free = max(now, self._free)
            if self._rate > 0:
                self._free += payload_bytes / self._rate
            return self._free - now


class SoftwareThrottle:
    """The limits of one agent. Does nothing until a Configure says `software`."""

    def __init__(self) -> None:
        self._governor = CpuGovernor()
        self.uplink, self.downlink = TokenBucket(), TokenBucket()

    def configure(self, wanted: Configure) -> None:
        on = wanted.software
        self._governor.set((wanted.ceiling or wanted.cpus) if on else 0.0)
        self.uplink.set(wanted.uplink_bit_s if on else 0)
        self.downlink.set(wanted.downlink_bit_s if on else 0)

    def pace(self) -> None:
        """Called by working threads between pieces of work. Sleeps if too much CPU time was used."""
        self.rest(float("inf"))

    def rest(self, at_most_s: float) -> bool:
        """The same, but sleeps at most `at_most_s` seconds. Returns whether more sleep is needed."""
        owed = self._governor.owed()
        if owed > 0:
            time.sleep(min(owed, at_most_s))
        return owed > at_most_s

    def link(self, link: Link) -> Link:
        """`link`, limited to the rates."""
        return ThrottledLink(link, self)


class ThrottledLink:
    """A Link whose messages are delayed by the token buckets; their order is kept."""

    def __init__(self, inner: Link, throttle: SoftwareThrottle) -> None:
        self._inner, self._throttle = inner, throttle

    @property
    def connected(self) -> bool:
        return self._inner.connected

    async def open(self) -> None:
        await self._inner.open()

    async def close(self) -> None:
        await self._inner.close()

    def on_connect(self, callback: Callable[[], None]) -> None:
        self._inner.on_connect(callback)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        def send() -> None:
            self._inner.publish(topic, payload, retain=retain)

        _after(self._throttle.uplink.delay(len(payload)), send)

    def subscribe(self, topic: str, handler: Handler) -> None:
        def receive(name: str, payload: bytes) -> None:
            _after(self._throttle.downlink.delay(len(payload)), lambda: handler(name, payload))

        self._inner.subscribe(topic, receive)


def _after(seconds: float, call: Callable[[], None]) -> None:
    if seconds <= 0:
        call()
    else:
        asyncio.get_running_loop().call_later(seconds, call)
