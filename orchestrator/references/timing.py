"""CPU seconds of calls in this thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext

REPEATS = 5


class ThreadMeter(nullcontext[None]):
    """Tells how many CPU seconds this thread has used."""

    def seconds(self) -> float:
        return time.thread_time()


def best_s(call: Callable[[], object]) -> float:
    """CPU seconds of the fastest of some calls: disturbances only ever add time."""
    return min(cpu_s(call) for _ in range(REPEATS))


def cpu_s(call: Callable[[], object]) -> float:
    start = time.thread_time()
    call()
    return time.thread_time() - start
