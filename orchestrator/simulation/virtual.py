"""An event loop whose clock is virtual: when nothing is ready it jumps to the next timer, so a simulated hour takes as
long as its computing."""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from edgebed.errors import RunError

T = TypeVar("T")
START_S = 1.0
"""Not 0: a time of 0 ns means "none" in places."""

Charge = Callable[[Callable[..., Any], tuple[Any, ...]], float]
"""Seconds that a call handed to a worker thread takes in the simulation."""


def free(call: Callable[..., Any], args: tuple[Any, ...]) -> float:
    """A Charge by which nothing takes time."""
    return 0.0


class _Jumping(selectors.BaseSelector):
    """Waits for nothing: lets the loop's clock pass instead."""

    def __init__(self, inner: selectors.BaseSelector, skip: Callable[[float], None]) -> None:
        self._inner, self._skip = inner, skip

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = self._inner.select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise RunError(
                "the simulation stands still: nothing is ready and no timer is set",
                hint="report it with the experiment file: something waits for what nobody will do",
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
    """Time passes only by timers and by `advance`. Calls for worker threads run inline, so everything is in one order.

    Attributes:
        charge: what those calls cost in virtual seconds; their result comes so much later.
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
        """Let time pass in which the loop does nothing else: what computes in the loop's own thread."""
        self._now_s += max(0.0, seconds)

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Run the call here and now; its result comes after what it costs."""
        done: asyncio.Future[T] = self.create_future()
        call, inner = _unwrap(func, args)
        try:
            result = func(*args)
        except Exception as error:
            done.set_exception(error)
            return done
        cost = self.charge(call, inner)
        if cost > 0:
            self.call_later(cost, lambda: None if done.done() else done.set_result(result))
        else:
            done.set_result(result)
        return done


def _unwrap(func: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The call that `asyncio.to_thread` has wrapped in a context."""
    if isinstance(func, functools.partial) and func.args:
        return func.args[0], tuple(func.args[1:])
    return func, args


def run_virtual(main: Callable[[VirtualLoop], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine on a virtual clock to its end; what it has left running is cancelled."""
    loop = VirtualLoop()
    try:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            return runner.run(main(loop))
    finally:
        loop.close()
