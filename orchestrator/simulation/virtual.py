"""An event loop with a virtual clock. When nothing is ready it jumps to the next timer, so a simulated hour takes only
as long as its computation."""

from __future__ import annotations

import asyncio
import contextlib
import selectors
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from edgebed.errors import RunError
from orchestrator.rounds.event_loop import OwnWork

T = TypeVar("T")
START_S = 1.0
"""Start of the virtual clock. Not 0, because 0 ns means "none" in places."""

Charge = Callable[[OwnWork, int], float]
"""Virtual seconds that work of the orchestrator on a number of bytes takes."""


def free(work: OwnWork, size: int) -> float:
    """A Charge in which nothing takes time."""
    return 0.0


class _Jumping(selectors.BaseSelector):
    """A selector that never waits: it advances the loop's clock instead."""

    def __init__(self, inner: selectors.BaseSelector, skip: Callable[[float], None]) -> None:
        self._inner, self._skip = inner, skip

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = self._inner.select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise RunError(
                "the simulation cannot continue: nothing is ready and no timer is set",
                hint="please report this with the experiment file: a task waits for something that never happens",
            )
        self._skip(timeout)
        return ready

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._inner.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._inner.unregister(fileobj)

    def get_map(self) -> Any:
        return self._inner.get_map()

    def close(self) -> None:
        self._inner.close()


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time passes only through timers and `advance`. Calls for worker threads run inline, in one fixed order.

    Attributes:
        charge: virtual seconds that calls through `run_charged` cost; their result arrives that much later.
    """

    def __init__(self) -> None:
        self._now_s = START_S
        self.charge: Charge = free
        super().__init__(_Jumping(selectors.DefaultSelector(), self.advance))
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._now_s

    def virtual_ns(self) -> int:
        return round(self._now_s * 1e9)

    def advance(self, seconds: float) -> None:
        """Let time pass in which the loop does nothing else, for a computation in the loop's own thread."""
        self._now_s += max(0.0, seconds)

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Run the call at once; it takes no virtual time."""
        return self._run(func, args, lambda: 0.0)

    def run_charged(self, work: OwnWork, size: int, call: Callable[[], T]) -> asyncio.Future[T]:
        """Run the call at once; its result arrives after the virtual seconds that `charge` gives for the work."""
        return self._run(call, (), lambda: self.charge(work, size))

    def _run(self, call: Callable[..., T], args: tuple[Any, ...], cost: Callable[[], float]) -> asyncio.Future[T]:
        done: asyncio.Future[T] = self.create_future()
        try:
            result = call(*args)
        except Exception as error:
            done.set_exception(error)
            return done
        seconds = cost()
        if seconds > 0:
            self.call_later(seconds, lambda: None if done.done() else done.set_result(result))
        else:
            done.set_result(result)
        return done


@contextlib.contextmanager
def virtual_runner() -> Iterator[asyncio.Runner]:
    """Context manager: runs coroutines one after another on one virtual clock, and at the end cancels the tasks that
    they left running."""
    loop = VirtualLoop()
    try:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            yield runner
    finally:
        loop.close()
