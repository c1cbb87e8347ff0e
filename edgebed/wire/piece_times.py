"""What a device measured of its pieces of work. Pure."""

from __future__ import annotations

import msgspec


class PieceTimes(msgspec.Struct, frozen=True, array_like=True):
    """CPU time of the training thread in the pieces of one kind and size in a task: their number, seconds of all, and
    microseconds of each of the first ones."""

    kind: str
    size: int
    count: int
    cpu_s: float
    each_us: tuple[int, ...] = ()
