"""The queue between the training thread and the link: the training thread waits while it is full."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future

from edgebed.device.metrics import TaskMetrics
from edgebed.device.phases import PhaseLog
from edgebed.device.uploads import UploadAccount
from edgebed.errors import TransferError
from edgebed.wire.messages import Header, Upload


class UploadQueue:
    """Uploads of one task.

    Args:
        loop: the event loop in which `send` runs.
        send: delivers one upload; returns at its end-to-end acknowledgement.
        cancelled: set when the task is no longer wanted.
        metrics: bytes and seconds are added here.
        slots: encoded uploads held at once.
        hold: keep all uploads and send them when `drained` is called. The training thread then never waits.

    Attributes:
        sent_cpu_s: CPU seconds of the process when the last upload was acknowledged.
    """

    sent_cpu_s = 0.0

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        send: Callable[[Header, bytes | bytearray], Awaitable[object]],
        phases: PhaseLog,
        cancelled: threading.Event,
        metrics: TaskMetrics,
        slots: int,
        hold: bool = False,
    ) -> None:
        self._loop, self._send, self._cancelled = loop, send, cancelled
        self._account = UploadAccount(metrics, phases, hold, time.monotonic)
        self._slots = threading.Semaphore(slots)
        self._futures: dict[Future[None], None] = {}  # in the order of the uploads

    def put(self, header: Upload, body: bytes | bytearray) -> bool:
        """Training thread: queue an upload. Waits while all slots are taken. Returns whether it had to wait. Raises
        TransferError after one failed."""
        self.check()
        if self._account.keep(header, body):
            return False
        waited = not self._slots.acquire(blocking=False)
        if waited:
            with self._account.blocked():
                while not self._slots.acquire(timeout=0.5):
                    self.check()
        self.check()
        self._start(header, body)
        return waited

    def _start(self, header: Upload, body: bytes | bytearray) -> None:
        future = asyncio.run_coroutine_threadsafe(self._deliver(header, body), self._loop)
        self._futures[future] = None
        future.add_done_callback(self._finished)

    def check(self) -> None:
        """Raises TransferError if the task was cancelled or an upload failed."""
        if self._cancelled.is_set():
            raise TransferError("the task was cancelled while an upload waited")
        self._account.check()

    async def drained(self) -> None:
        """Event loop: returns when every upload is acknowledged. Raises TransferError if one failed."""
        while self._account.held:
            self.check()
            if self._slots.acquire(blocking=False):
                self._start(*self._account.held.popleft())
            else:
                sending = [asyncio.wrap_future(f) for f in tuple(self._futures)]
                await asyncio.wait(sending, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(*(asyncio.wrap_future(f) for f in tuple(self._futures)), return_exceptions=True)
        self.check()

    def abandon(self) -> None:
        """Event loop, after `cancelled` is set: give up every upload, queued or being sent. The last one is cancelled
        first, so that none of them takes the place of the one before it."""
        self._account.held.clear()
        for future in reversed(tuple(self._futures)):
            future.cancel()

    async def _deliver(self, header: Upload, body: bytes | bytearray) -> None:
        if self._cancelled.is_set():
            return  # queued while the task was being cancelled
        with self._account.sending():
            await self._send(header, body)
            self.sent_cpu_s = time.process_time()
            self._account.sent(len(body))

    def _finished(self, future: Future[None]) -> None:
        self._futures.pop(future, None)
        self._slots.release()
