"""A program that measures how fast the host is: `python -m orchestrator.fleet.host.reference_loop [CGROUP.PROCS…]`.

It joins the cgroups whose files it is given. Then it does the same small piece of work again and again, and prints a
line for each: nanoseconds of the monotonic clock, and nanoseconds of CPU time that the work took. It ends when its
standard input ends, and so with the process that started it, however that ends.
"""

from __future__ import annotations

import os
import select
import sys
import time
from pathlib import Path

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


def loop_s() -> float:
    """CPU seconds of one piece of work on this host, 90th percentile of LOOK_S: a host that others share is slower a
    moment later."""
    buffer, taken, end = bytes(BYTES), list[float](), time.monotonic() + LOOK_S
    while time.monotonic() < end:
        begun = time.thread_time()
        work(buffer)
        taken.append(time.thread_time() - begun)
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
