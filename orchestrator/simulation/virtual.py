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

T = TypeVar("T")
RESOLUTION_S = 1e-9
START_S = 1.0
"""Start of the virtual clock. Not 0, because 0 ns means "none" in places."""


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
    """Time passes only through timers. Calls for worker threads run inline, in one fixed order. What
    happens depends on nothing but the timers that are set, so a simulation that goes on from a checkpoint with the same
    timers and the same clock does the same."""

    def __init__(self) -> None:
        self._now_s = START_S
        self._scheduled: list[_Timer]
        self._numbers = itertools.count(1)
        self._settling = 0
        super().__init__(_Jumping(selectors.DefaultSelector(), self._to_next_timer))
        self._clock_resolution = RESOLUTION_S

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
        # The loop runs timers a resolution early. One that is set again and again for the rest of a nanosecond would
        # then stop the clock.
        if self._now_s < when < self._now_s + 2 * RESOLUTION_S:
            when = self._now_s + 2 * RESOLUTION_S
        timer = _Timer(when, callback, args, self, context)
        timer.number = next(self._numbers)
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True  # type: ignore[attr-defined]  # noqa: SLF001 - as asyncio's own `call_at`
        return timer

    def _to_next_timer(self) -> None:
        self._now_s = max(self._now_s, self._scheduled[0].when())

    async def settled(self) -> None:
        """Return when everything that is due at this time has happened. Several may wait for it at once."""
        self._settling += 1
        try:
            while self._due():  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0)
        finally:
            self._settling -= 1

    def _due(self) -> bool:
        """Whether anything is ready now, but others that wait in `settled`; or a timer is due."""
        ready: int = len(self._ready)  # type: ignore[attr-defined]
        timers = self._scheduled
        return ready >= self._settling or (bool(timers) and timers[0].when() < self._now_s + RESOLUTION_S)

    async def until(self, at_s: float) -> None:
        """Return when the clock shows `at_s`."""
        reached: asyncio.Future[None] = self.create_future()
        self.call_at(at_s, lambda: None if reached.done() else reached.set_result(None))
        await reached

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Run the call at once; it takes no virtual time."""
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
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
