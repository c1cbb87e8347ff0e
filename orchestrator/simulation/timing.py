"""CPU seconds of calls in this thread."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Protocol

import torch

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


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Context manager: torch computes with one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
