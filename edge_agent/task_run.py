"""The agent's current task: the calls of its training thread to the event loop, its end and its report."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from edge_agent.software_throttle import SoftwareThrottle
from edge_agent.telemetry import RunDelay, ThreadCpu, Throttling, resident_mib
from edge_agent.training import DeviceTrainer, TaskIO
from edge_agent.upload_queue import UploadQueue
from edgebed.device.core import Body, Cancelled, Result
from edgebed.device.metrics import TaskMetrics
from edgebed.device.phases import PhaseLog
from edgebed.device.pieces import Pieces
from edgebed.link.endpoint import ReceivedTransfer
from edgebed.pacing import Pacer
from edgebed.wire.messages import Header, Report, Task, Upload

LONGEST_REST_S = 0.5
"""Seconds after which a throttled thread looks for cancellation."""


@dataclass(frozen=True)
class Tools:
    """What all tasks share. `send` returns at the end-to-end acknowledgement; `advance` counts progress."""

    loop: asyncio.AbstractEventLoop
    phases: PhaseLog
    throttling: Throttling
    throttle: SoftwareThrottle
    pacer: Pacer
    thread_cpu: ThreadCpu
    send: Callable[[Header, bytes | bytearray], Awaitable[object]]
    advance: Callable[[], None]


class TaskRun(TaskIO):
    """One task.

    Args:
        quota_s: CPU seconds that the quota gives in one of its periods.

    Attributes:
        result: what the training gave; None until it has ended well.
        diverged: training failed because values were not finite.
        trace: traceback of an unexpected error.
        ending: the job that sends the update or the failure.
    """

    def __init__(self, task: Task, inbound: ReceivedTransfer, tools: Tools, quota_s: float) -> None:
        super().__init__(TaskMetrics(inbound.bytes, (inbound.last_ns - inbound.first_ns) / 1e9))
        self.task, self._tools = task, tools
        self.result: Result | None = None
        self.diverged = False
        self.trace = ""
        self.ending: asyncio.Task[None] | None = None
        self._quota_s, self._cpu_s = quota_s, time.process_time()
        self._body: Body = inbound.body
        self._cancelled = threading.Event()
        self._throttled_ns, self._delay = tools.throttling.read()[0], RunDelay()
        self._replies = ReplyBox(self._cancelled)
        slots, hold = task.assignment.upload_slots, task.assignment.hold
        self.uploads = UploadQueue(tools.loop, tools.send, tools.phases, self._cancelled, self.metrics, slots, hold)

    def work(self, trainer: DeviceTrainer, threads: int, cpus: float) -> Result:
        """In the training thread."""
        self._tools.thread_cpu.watch(threading.get_ident())
        self._pieces = Pieces(time.thread_time, self.task.costs, self.task.index, self.task.assignment.seed)
        self._tools.pacer.charge(self._pieces.charge("receive", self.metrics.download_bytes))
        self.hold(waited=True)  # for the CPU time of the download, which is no work
        return trainer.run(self.task, self._take_body(), self, threads, cpus)

    def _take_body(self) -> Body:
        """The encoded weights. Nothing here refers to them afterwards, so that they are freed once decoded."""
        body, self._body = self._body, b""
        return body

    def done(self, kind: str, size: int) -> None:
        self._tools.pacer.charge(self._pieces.done(kind, size))
        if self.task.costs:
            self.hold()

    def upload(self, header: Upload, body: bytes | bytearray) -> None:
        waited = self.uploads.put(header, body)
        self.hold(waited=waited)  # a wait for a slot is not work: the next batch is a unit of its own
        self._tools.pacer.charge(self._pieces.charge("send", len(body)))

    def reply(self, batch: int) -> bytes:
        body, waited = self._replies.take(batch)
        self.hold(waited=waited, used_s=self.uploads.sent_cpu_s if waited else None)
        self._tools.pacer.charge(self._pieces.charge("receive", len(body)))
        return body

    def answer(self, batch: int, body: bytes) -> None:
        self._replies.put(batch, body)

    def check(self) -> None:
        if self._cancelled.is_set():
            raise Cancelled("the task was cancelled")
        self.uploads.check()

    def progress(self) -> None:
        self._tools.advance()

    def wait(self, seconds: float) -> None:
        if self._cancelled.wait(seconds):
            raise Cancelled("the task was cancelled")

    def hold(self, *, waited: bool = False, used_s: float | None = None) -> None:
        self._tools.pacer.hold(self._rest, waited=waited, used_s=used_s)

    def _rest(self, seconds: float) -> None:
        self.wait(min(seconds, LONGEST_REST_S))
        if seconds > LONGEST_REST_S:
            self.progress()  # a device that waits because of its limit is not stuck

    def pace(self) -> None:
        now_s = time.process_time()
        self.metrics.count_piece(now_s - self._cpu_s, self._quota_s)
        self._cpu_s = now_s
        while self._tools.throttle.rest(LONGEST_REST_S):
            self.check()
            self.progress()  # as in `_rest`

    def cancel(self) -> None:
        """The task is over: stop training, and give up everything that is still to be sent for it."""
        self._cancelled.set()
        self.uploads.abandon()  # before the update: uploads must end in their own order
        if self.ending is not None and self.ending is not asyncio.current_task():
            self.ending.cancel()

    def report(self) -> Report:
        """Call it when every upload has been acknowledged."""
        assert self.result is not None
        counters = self._tools.throttling
        throttled_s = (counters.read()[0] - self._throttled_ns) / 1e9 if counters.visible else None
        late_s = self._tools.pacer.late_s
        return self.metrics.report(
            self.result, throttled_s, resident_mib(), self._delay.seconds(), self._pieces, late_s
        )


class ReplyBox:
    """Replies by upload number. The training thread waits here."""

    def __init__(self, cancelled: threading.Event) -> None:
        self._cancelled, self._ready = cancelled, threading.Condition()
        self._bodies: dict[int, bytes] = {}

    def put(self, batch: int, body: bytes) -> None:
        with self._ready:
            self._bodies[batch] = body
            self._ready.notify_all()

    def take(self, batch: int) -> tuple[bytes, bool]:
        """The body, and whether it had to be waited for."""
        waited = False
        with self._ready:
            while batch not in self._bodies:
                if self._cancelled.is_set():
                    raise Cancelled("the task was cancelled")
                self._ready.wait(0.5)
                waited = True
            return self._bodies.pop(batch), waited
