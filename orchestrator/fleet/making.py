"""Runs work that creates things on the host in threads, with a clean-up that waits for them.

Cancelling an await does not stop the thread behind it. Without this module, a thread could create something after the
clean-up, and nobody would remove it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from edgebed.errors import FleetError

R = TypeVar("R")


class Making:
    """The threads of one fleet that create things on the host."""

    def __init__(self) -> None:
        self._ending = threading.Event()
        self._jobs: set[asyncio.Task[Any]] = set()

    async def run(self, work: Callable[..., R], *args: Any) -> R:
        """Run `work(*args)` in a thread. It continues to its end or to its next `go_on`, even if the caller is
        cancelled."""
        job = asyncio.create_task(asyncio.to_thread(work, *args))
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)
        return await asyncio.shield(job)

    def go_on(self) -> None:
        """Threads call this before they create anything. Raises FleetError if the fleet is being closed."""
        if self._ending.is_set():
            raise FleetError("the fleet is being closed", hint="open another one")

    async def end(self) -> None:
        """Make the threads stop at their next `go_on`. Returns when all have stopped."""
        self._ending.set()
        if self._jobs:
            await asyncio.wait(self._jobs)


class CleanUp:
    """Work that always runs to its end once it has begun, even if its waiters are cancelled, or all tasks are cancelled
    at the end of an event loop. `work`: must be safe to start again after it was interrupted."""

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self._work = work
        self._task: asyncio.Future[None] | None = None

    async def finish(self) -> None:
        """Return when the work is done; at once if it is already done. Then raise the caller's cancellation, if any."""
        cancelled, last = False, self._task
        if last is not None and last.done() and (last.cancelled() or last.exception() is not None):
            self._task = None
        while self._task is None or not self._task.done():
            self._task = self._task or asyncio.ensure_future(self._work())
            try:
                await asyncio.wait([self._task])
            except asyncio.CancelledError:
                cancelled = True
            if self._task.cancelled():
                self._task = None
        if cancelled:
            raise asyncio.CancelledError
        self._task.result()
