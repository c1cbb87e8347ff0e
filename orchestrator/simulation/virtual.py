"""An event loop with a virtual clock. When nothing is ready it jumps to the next timer, so a simulated hour takes only
as long as its computation."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import selectors
from collections.abc import Callable, Iterator
from contextvars import Context
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
    """A selector that never waits: it moves the loop's clock to the next timer instead."""

    def __init__(self, inner: selectors.BaseSelector, skip: Callable[[], None]) -> None:
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
        self._skip()
        return ready

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._inner.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._inner.unregister(fileobj)

    def get_map(self) -> Any:
        return self._inner.get_map()

    def close(self) -> None:
        self._inner.close()


class _Timer(asyncio.TimerHandle):
    """Timers that are due at the same time run in the order in which they were made."""

    number = 0

    def __lt__(self, other: _Timer) -> bool:  # type: ignore[override]
        return (self.when(), self.number) < (other.when(), other.number)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time passes only through timers and `advance`. Calls for worker threads run inline, in one fixed order. What
    happens depends on nothing but the timers that are set, so a simulation that goes on from a checkpoint with the same
    timers and the same clock does the same.

    Attributes:
        charge: virtual seconds that calls through `run_charged` cost; their result arrives that much later.
    """

    def __init__(self) -> None:
        self._now_s = START_S
        self.charge: Charge = free
        self._scheduled: list[_Timer]
        self._numbers = itertools.count(1)
        self._settling = 0
        super().__init__(_Jumping(selectors.DefaultSelector(), self._to_next_timer))
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._now_s

    def virtual_ns(self) -> int:
        return round(self._now_s * 1e9)

    def start_at(self, now_s: float) -> None:
        """Set the clock, before any timer is set: a simulation goes on."""
        self._now_s = now_s

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = _Timer(when, callback, args, self, context)
        timer.number = next(self._numbers)
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def _to_next_timer(self) -> None:
        self._now_s = max(self._now_s, self._scheduled[0].when())

    async def settled(self) -> None:
        """Return when everything that is due at this time has happened. Several may wait for it at once."""
        self._settling += 1
        try:
            while self._due():
                await asyncio.sleep(0)
        finally:
            self._settling -= 1

    def _due(self) -> bool:
        """Whether anything is ready now, but others that wait in `settled`; or a timer is due."""
        ready: int = len(self._ready)  # type: ignore[attr-defined]
        timers = self._scheduled
        return ready >= self._settling or (bool(timers) and timers[0].when() <= self._now_s + self._clock_resolution)

    async def until(self, at_s: float) -> None:
        """Return when the clock shows `at_s`."""
        reached: asyncio.Future[None] = self.create_future()
        self.call_at(at_s, lambda: None if reached.done() else reached.set_result(None))
        await reached

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
