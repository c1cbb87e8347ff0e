"""A program that measures how fast the host is: `python -m orchestrator.fleet.host.reference_loop [CGROUP.PROCS…]`.

It joins the cgroups whose files it is given. Then it does the same small piece of work again and again, and prints a
line for each: nanoseconds of the monotonic clock, and nanoseconds of CPU time that the work took. It ends when its
standard input ends, and so with the process that started it, however that ends.
"""

from __future__ import annotations

import math
import os
import select
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import stdev
from typing import NamedTuple

REST_S = 0.3
STEPS = 15_000
BYTES = 1 << 21
COPIES = 2
"""One piece of work takes about 2 ms: arithmetic of the interpreter, which follows the clock rate, and copies of a
buffer that no core's own cache holds, which follow the memory that all cores share."""


def work(buffer: bytes) -> int:
    number = 1
    for _ in range(STEPS):
        number = (number * 1_103_515_245 + 12_345) & 0x7FFFFFFF
    for _ in range(COPIES):
        number += len(bytearray(buffer))
    return number


LOOK_S = 1.5
PARTS = 10


class LoopTimes(NamedTuple):
    """CPU seconds of one piece of work: 90th percentile, because a host that others share is slower a moment later.
    `error_s`: its standard error, from PARTS parts of the time. `drift`: of the second half ÷ the first, − 1."""

    s: float
    error_s: float
    drift: float


def loop_times(seconds: float = LOOK_S) -> LoopTimes:
    """On this host, measured for so many seconds."""
    buffer, taken, end = bytes(BYTES), list[float](), time.monotonic() + seconds
    while time.monotonic() < end or len(taken) < 2 * PARTS:
        begun = time.thread_time()
        work(buffer)
        taken.append(time.thread_time() - begun)
    return times_of(taken)


def times_of(taken: Sequence[float]) -> LoopTimes:
    """From the CPU seconds of at least 2 × PARTS pieces, in the order of time."""
    count = len(taken)
    parts = [_slow(taken[count * part // PARTS : count * (part + 1) // PARTS]) for part in range(PARTS)]
    halves = _slow(taken[: count // 2]), _slow(taken[count // 2 :])
    return LoopTimes(_slow(taken), stdev(parts) / math.sqrt(PARTS), halves[1] / halves[0] - 1)


def _slow(taken: Sequence[float]) -> float:
    return sorted(taken)[int(0.9 * len(taken))]


def main() -> None:
    for procs in sys.argv[1:]:
        Path(procs).write_text(str(os.getpid()))
    buffer = bytes(BYTES)
    while not select.select([sys.stdin], [], [], REST_S)[0]:
        begun = time.thread_time_ns()
        work(buffer)
        print(time.monotonic_ns(), time.thread_time_ns() - begun, flush=True)


if __name__ == "__main__":
    main()
