"""One direction of a simulated link: transfers one after the other, with a goodput and a latency."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable

import msgspec

from edgebed.link.endpoint import CHUNK_BYTES
from edgebed.wire.frames import chunk_count
from edgebed.wire.messages import Header, encode
from orchestrator.simulation.pace import Pace

FRAME_BYTES = 56
"""Bytes that a frame adds to its payload: ids of the transfer and of the one before it, numbers, checksum."""


class LinkCost(msgspec.Struct, frozen=True):
    """A transfer of n bytes takes `latency_s` + n × `byte_s` seconds, and its acknowledgement `ack_s` back."""

    latency_s: float
    byte_s: float
    ack_s: float = 0.0


class Arrival(msgspec.Struct, frozen=True):
    """When the first and the last chunk of a transfer arrived, and its bytes on the wire."""

    first_ns: int
    last_ns: int
    bytes: int


def wire_bytes(header: Header, size: int) -> int:
    """Bytes of the frames that carry a body of `size` bytes."""
    return size + len(encode(header)) + FRAME_BYTES * chunk_count(size, CHUNK_BYTES)


class Pipe:
    """Carries one transfer at a time, in the order of the calls.

    Args:
        cost: called at the start of each transfer, and when the link has changed.
        moved: called whenever a chunk has arrived, and at least every `tell_s` seconds.

    Attributes:
        open: False while the link is cut, or its device is frozen: nothing moves.
    """

    def __init__(
        self, cost: Callable[[], LinkCost], now_ns: Callable[[], int], moved: Callable[[], None], tell_s: float
    ) -> None:
        self._cost, self._now_ns, self._moved, self._tell_s = cost, now_ns, moved, tell_s
        self._turn, self._pace = asyncio.Lock(), Pace()
        self._numbers = itertools.count()
        self._left: dict[int, float] = {}  # bytes of every transfer, in order, at the start of the step
        self._step = 0, 1.0  # of the first of them: its start in ns, and seconds per byte
        self.open = True

    def left(self) -> list[int]:
        """Bytes that the transfers in hand have still to carry, in their order."""
        sizes, (start_ns, byte_s) = list(self._left.values()), self._step
        if sizes and start_ns and self.open:
            sizes[0] -= (self._now_ns() - start_ns) / 1e9 / byte_s
        return [max(1, math.ceil(size)) for size in sizes]

    def changed(self) -> None:
        """The rate or `open` has changed: the transfer in hand goes on at the new rate."""
        self._pace.changed()

    async def carry(self, size: int) -> Arrival:
        """Return when the last byte has arrived. Cancelling it frees the link."""
        number = next(self._numbers)
        self._left[number] = size
        try:
            async with self._turn:
                cost = self._cost()
                first = min(size, CHUNK_BYTES)
                # A transfer that directly follows another one has no latency of its own: it is counted once per gap.
                await self._pass(number, first * cost.byte_s, cost.byte_s)
                begun_ns = self._now_ns() + round(cost.latency_s * 1e9)
                await self._pass(number, (size - first) * cost.byte_s, cost.byte_s)
        finally:
            del self._left[number]
        await asyncio.sleep(cost.latency_s)
        self._moved()
        now_ns = self._now_ns()
        return Arrival(min(begun_ns, now_ns), now_ns, size)  # `begun_ns` may have been rounded up

    async def _pass(self, number: int, seconds: float, byte_s: float) -> None:
        """Let the time of some bytes pass: `seconds`, if the rate stays at `byte_s` seconds per byte."""
        rest = self._left[number] - seconds / byte_s
        while seconds > 0:
            self._left[number], self._step = rest + seconds / byte_s, (self._now_ns(), byte_s)
            if not self.open:
                await self._pace.sleep(None)
                continue
            start_ns, step = self._now_ns(), min(seconds, self._tell_s)
            if await self._pace.sleep(step):
                now = self._cost().byte_s
                seconds = max(0.0, seconds - (self._now_ns() - start_ns) / 1e9) * now / byte_s
                byte_s = now
            else:
                seconds -= step
                self._moved()
        self._left[number], self._step = rest, (0, byte_s)
