"""One task in hand: what the training thread asks of the event loop, and what came of it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from edge_agent.phases import PhaseLog
from edge_agent.software_throttle import SoftwareThrottle
from edge_agent.telemetry import ThreadCpu, Throttling, resident_mib
from edge_agent.training import Cancelled, Result, Trainer
from edge_agent.upload_queue import SLOTS, UploadQueue
from edgebed.link.endpoint import ReceivedTransfer
from edgebed.wire.messages import Header, Report, Task

LONGEST_REST_S = 0.5
"""A throttled thread looks up so often."""


@dataclass(frozen=True)
class Tools:
    """What every task shares. `send` returns at the end-to-end acknowledgement; `advance` counts progress."""

    loop: asyncio.AbstractEventLoop
    phases: PhaseLog
    throttling: Throttling
    throttle: SoftwareThrottle
    thread_cpu: ThreadCpu
    send: Callable[[Header, bytes | bytearray], Awaitable[None]]
    advance: Callable[[], None]


class TaskRun:
    """One task in hand: what the training thread asks of the loop (`training.TaskIO`), and what came of it."""

    def __init__(self, task: Task, inbound: ReceivedTransfer, tools: Tools) -> None:
        self.task, self._tools = task, tools
        self.result: Result | None = None
        self.diverged = False
        self.trace = ""  # of an error that nobody foresaw
        self.ending: asyncio.Task[None] | None = None  # sends the update, or why there is none
        self._body: bytes | memoryview = inbound.body
        self._download = (inbound.bytes, (inbound.last_ns - inbound.first_ns) / 1e9)
        self._cancelled = threading.Event()
        self._throttled_ns = tools.throttling.read()[0]
        self._replies = ReplyBox(self._cancelled)
        slots, hold = task.assignment.slots or SLOTS, task.assignment.hold
        self.outbox = UploadQueue(tools.loop, tools.send, tools.phases, self._cancelled, slots, hold)

    def work(self, trainer: Trainer, threads: int, cpus: float) -> Result:
        """In the training thread."""
        self._tools.thread_cpu.watch(threading.get_ident())
        body, self._body = self._body, b""  # the trainer alone holds it, and lets go after decoding
        return trainer.run(self.task, body, self, threads, cpus)

    def upload(self, header: Header, body: bytes | bytearray) -> None:
        self.outbox.put(header, body)

    def reply(self, batch: int) -> bytes:
        return self._replies.take(batch)

    def answer(self, batch: int, body: bytes) -> None:
        self._replies.put(batch, body)

    def check(self) -> None:
        if self._cancelled.is_set():
            raise Cancelled("the task was cancelled")
        self.outbox.check()

    def progress(self) -> None:
        self._tools.advance()

    def wait(self, seconds: float) -> None:
        if self._cancelled.wait(seconds):
            raise Cancelled("the task was cancelled")

    def pace(self) -> None:
        while self._tools.throttle.rest(LONGEST_REST_S):
            self.check()
            self.progress()  # a rest that the limit demands is no standstill

    def cancel(self) -> None:
        """The task is over: stop training, give up all that is still to be sent for it."""
        self._cancelled.set()
        self.outbox.abandon()  # first, for it knows the right order
        if self.ending is not None and self.ending is not asyncio.current_task():
            self.ending.cancel()

    def report(self) -> Report:
        """Made when every upload has been acknowledged, so that bytes and seconds of the link belong together."""
        result = self.result
        assert result is not None
        counters = self._tools.throttling
        throttled_s = (counters.read()[0] - self._throttled_ns) / 1e9 if counters.visible else None
        return Report(
            samples=result.samples,
            batches=result.batches,
            loss=result.loss,
            compute_s=result.compute_s,
            compute_cpu_s=result.compute_cpu_s,
            encode_s=result.encode_s,
            encode_cpu_s=result.encode_cpu_s,
            notes=result.notes,
            throttled_s=throttled_s,
            download_bytes=self._download[0],
            download_s=self._download[1],
            upload_bytes=self.outbox.bytes,
            upload_s=self.outbox.busy_s,
            blocked_s=self.outbox.blocked_s,
            reply_s=self._replies.waited_s,
            memory_mib=resident_mib(),
        )


class ReplyBox:
    """Replies by batch; the training thread waits here."""

    def __init__(self, cancelled: threading.Event) -> None:
        self._cancelled, self._ready = cancelled, threading.Condition()
        self._bodies: dict[int, bytes] = {}
        self.waited_s = 0.0

    def put(self, batch: int, body: bytes) -> None:
        with self._ready:
            self._bodies[batch] = body
            self._ready.notify_all()

    def take(self, batch: int) -> bytes:
        start = time.monotonic()
        with self._ready:
            while batch not in self._bodies:
                if self._cancelled.is_set():
                    raise Cancelled("the task was cancelled")
                self._ready.wait(0.5)
            self.waited_s += time.monotonic() - start
            return self._bodies.pop(batch)
