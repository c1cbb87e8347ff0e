"""A steady stream of bytes over one connection, and how fast it arrives: shows whether a network carries a rate."""

from __future__ import annotations

import asyncio
import contextlib
import time

from edgebed.timeouts import timeout

PIECE, PIECE_S = 1 << 16, 0.02
"""Bytes, and seconds at the rate that is sent: a piece is the smaller of the two."""

WARM_UP_S, MEASURED_S = 0.3, 0.8
LASTS_S = WARM_UP_S + MEASURED_S + 0.2
"""The sender sends so long, which is longer than the receiver measures."""


async def send(writer: asyncio.StreamWriter, bit_s: float) -> None:
    """Send at this rate (above 0), or as fast as the other end and the network take it, for LASTS_S."""

    async def stream() -> None:
        data, sent, start = bytes(max(1, min(PIECE, int(PIECE_S * bit_s / 8)))), 0, time.monotonic()
        while True:
            writer.write(data)
            await writer.drain()
            sent += len(data)
            await asyncio.sleep(max(0.0, start + 8 * sent / bit_s - time.monotonic()))

    with contextlib.suppress(OSError, TimeoutError):  # the receiver is gone: it tells what it got
        async with timeout(LASTS_S):
            await stream()


async def receive(reader: asyncio.StreamReader) -> float:
    """Bits per second that arrived in MEASURED_S, from WARM_UP_S after the call on."""
    start, counted = time.monotonic() + WARM_UP_S, 0
    while (left_s := start + MEASURED_S - time.monotonic()) > 0:
        with contextlib.suppress(TimeoutError):
            async with timeout(left_s):
                data = await reader.read(PIECE)
            if not data:
                break
            counted += len(data) if time.monotonic() >= start else 0
    return 8 * counted / MEASURED_S
