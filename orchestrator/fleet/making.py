"""Threads that make things on the host, and a clean-up that waits for them.

Cancelling an await leaves the thread behind it at work, and nobody would remove what it makes after the clean-up.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
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
            raise FleetError("the fleet is being closed", cure="open another one")

    async def end(self) -> None:
        """Have the threads stop at their next `go_on`; returns once none is at work."""
        self._ending.set()
        if self._jobs:
            await asyncio.wait(self._jobs)
