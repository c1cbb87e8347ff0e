"""Threads that make things on the host, and a clean-up that waits for them.

Cancelling an await leaves the thread behind it at work, and nobody would remove what it makes after the clean-up.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from edgebed.errors import FleetError

R = TypeVar("R")


class Making:
    """The work of one fleet that leaves something behind."""

    def __init__(self) -> None:
        self._ending = threading.Event()
        self._jobs: set[asyncio.Task[Any]] = set()

    async def run(self, work: Callable[..., R], *args: Any) -> R:
        """`work(*args)` in a thread. It goes on to its end, or to its next `go_on`, whatever becomes of the caller."""
        job = asyncio.create_task(asyncio.to_thread(work, *args))
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)
        return await asyncio.shield(job)

    def go_on(self) -> None:
        """For the threads to call before everything they make. Raises FleetError once the fleet is being closed."""
        if self._ending.is_set():
            raise FleetError("the fleet is being closed", hint="open another one")

    async def end(self) -> None:
        """Have the threads stop at their next `go_on`; returns once none is at work."""
        self._ending.set()
        if self._jobs:
            await asyncio.wait(self._jobs)


class CleanUp:
    """Work that is done to its end once it was begun, however often those who wait for it are cancelled, or even all
    tasks at once, as at the end of an event loop.

    Args:
        work: safe to be begun again after it was cut short.
    """

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self._work = work
        self._task: asyncio.Future[None] | None = None

    async def finish(self) -> None:
        """Returns when the work is done; at once where it was done before. A cancellation is raised after that."""
        cancelled = False
        if self._task is not None and self._task.done() and not self._succeeded():
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

    def _succeeded(self) -> bool:
        return self._task is not None and not self._task.cancelled() and self._task.exception() is None
