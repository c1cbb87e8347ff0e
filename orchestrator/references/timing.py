"""CPU seconds of calls in this thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

REPEATS = 5


class Meter(Protocol):
    """Tells how many CPU seconds this thread has used, between its opening and its end."""

    def __enter__(self) -> None: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def seconds(self) -> float: ...


class ThreadMeter:
    """Reads the thread's clock."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def seconds(self) -> float:
        return time.thread_time()


def best_s(call: Callable[[], object], repeats: int = REPEATS) -> float:
    """CPU seconds of the fastest of some calls: disturbances only ever add time."""
    return min(cpu_s(call) for _ in range(repeats))


def cpu_s(call: Callable[[], object]) -> float:
    start = time.thread_time()
    call()
    return time.thread_time() - start
