"""The bounded queue between the training thread and the uplink: full means that the thread stands still, and for how
long is recorded."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future

from edge_agent.phases import PhaseLog
from edgebed.errors import EdgebedError, TransferError
from edgebed.wire.messages import Header

SLOTS = 2
"""Encoded uploads held at once: one on the wire, one ready to follow it."""


class UploadQueue:
    """Uploads of one task.

    Args:
        loop: where `send` runs.
        send: delivers one upload, returning at its end-to-end acknowledgement.
        cancelled: set when the task is no longer wanted.
        slots: encoded uploads held at once.
        hold: keep all uploads, and send them when `drained` is called; nothing then makes the training thread wait.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        send: Callable[[Header, bytes | bytearray], Awaitable[None]],
        phases: PhaseLog,
        cancelled: threading.Event,
        slots: int = SLOTS,
        hold: bool = False,
    ) -> None:
        self._loop, self._send, self._phases, self._cancelled = loop, send, phases, cancelled
        self._slots = threading.Semaphore(slots)
        self._hold, self._held = hold, deque[tuple[Header, bytes | bytearray]]()
        self._futures: dict[Future[None], None] = {}  # in the order of the uploads
        self._error: BaseException | None = None
        self._in_flight, self._since = 0, 0.0
        self.bytes, self.busy_s, self.blocked_s = 0, 0.0, 0.0

    def put(self, header: Header, body: bytes | bytearray) -> None:
        """Training thread: queue an upload; waits while all slots are taken. Raises TransferError once one failed."""
        self.check()
        if self._hold:
            self._held.append((header, body))
            return
        if not self._slots.acquire(blocking=False):
            self._block()
        self.check()
        self._start(header, body)

    def _start(self, header: Header, body: bytes | bytearray) -> None:
        future = asyncio.run_coroutine_threadsafe(self._deliver(header, body), self._loop)
        self._futures[future] = None
        future.add_done_callback(self._finished)

    def check(self) -> None:
        if self._cancelled.is_set():
            raise TransferError("the task was cancelled while an upload waited")
        if self._error is not None:
            raise TransferError(f"an upload could not be delivered: {self._error}")

    async def drained(self) -> None:
        """I/O thread: returns when every upload is acknowledged; raises TransferError where one failed."""
        while self._held:
            self.check()
            if self._slots.acquire(blocking=False):
                self._start(*self._held.popleft())
            else:
                sending = [asyncio.wrap_future(f) for f in tuple(self._futures)]
                await asyncio.wait(sending, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(*(asyncio.wrap_future(f) for f in tuple(self._futures)), return_exceptions=True)
        self.check()

    def abandon(self) -> None:
        """I/O thread, once `cancelled` is set: give up every upload, queued or on the wire. The last goes first, so
        that none takes the place of the one before it."""
        self._held.clear()
        for future in reversed(tuple(self._futures)):
            future.cancel()

    def _block(self) -> None:
        start = time.monotonic()
        before = self._phases.enter("blocked")
        try:
            while not self._slots.acquire(timeout=0.5):
                self.check()
        finally:
            self._phases.enter(before)
            self.blocked_s += time.monotonic() - start

    async def _deliver(self, header: Header, body: bytes | bytearray) -> None:
        if self._cancelled.is_set():
            return  # handed over while the task was being cancelled
        if self._in_flight == 0:
            self._since = time.monotonic()
        self._in_flight += 1
        try:
            await self._send(header, body)
            self.bytes += len(body)
        except EdgebedError as error:
            self._error = self._error or error
        finally:
            self._in_flight -= 1
            if self._in_flight == 0:
                self.busy_s += time.monotonic() - self._since

    def _finished(self, future: Future[None]) -> None:
        self._futures.pop(future, None)
        self._slots.release()
