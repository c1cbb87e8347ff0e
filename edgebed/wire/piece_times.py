"""What a device measured of its time: phases, and pieces of work. Pure."""

from __future__ import annotations

import msgspec

from edgebed.wire.texts import Text


class Phase(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A phase: a named interval of a device's time, on the device's monotonic clock. Phases of a device follow one
    another without gap. `cpu_ns` is the agent's CPU time within it (all threads); `throttled_ns` and `throttled` are
    for how long and how often its cgroup was stopped in it, 0 where that cannot be seen."""

    name: Text
    task: Text
    start_ns: int
    end_ns: int
    cpu_ns: int = 0
    throttled_ns: int = 0
    throttled: int = 0


class PieceTimes(msgspec.Struct, frozen=True, array_like=True):
    """CPU time of the training thread in the pieces of one kind and size in a task: their number, seconds of all, and
    microseconds of each of the first ones."""

    kind: str
    size: int
    count: int
    cpu_s: float
    each_us: tuple[int, ...] = ()
