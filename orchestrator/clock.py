"""The clock of a run: the machine's, or the virtual one of a simulation's event loop."""

from __future__ import annotations

import asyncio
import time


def now_ns() -> int:
    """Nanoseconds on the running event loop's clock: virtual where the loop has one (`virtual_ns`), else monotonic."""
    virtual = getattr(asyncio.get_running_loop(), "virtual_ns", None)
    return time.monotonic_ns() if virtual is None else int(virtual())


def unique_ns() -> int:
    """Nanoseconds that no other session of a run has had: of the wall clock. Virtual ones in a simulation, which tells
    the same again when it goes on; as many digits."""
    virtual = getattr(asyncio.get_running_loop(), "virtual_ns", None)
    return time.time_ns() if virtual is None else (1 << 60) + int(virtual())


def now_s() -> float:
    """The same in seconds."""
    return now_ns() / 1e9
