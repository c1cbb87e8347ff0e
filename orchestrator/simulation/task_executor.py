"""Drives the device core in virtual time: lets the cost of every step pass, and waits for uploads and replies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, Protocol

from edgebed.device.core import AwaitReply, Body, Computed, CoreStep, CoreSteps, Decoded, Encoded, Result, SendUpload
from edgebed.device.metrics import TaskMetrics
from edgebed.device.phases import PhaseLog
from edgebed.device.pieces import Kinds, Pieces
from edgebed.device.uploads import UploadAccount
from edgebed.wire.messages import Assignment, Task, Upload
from orchestrator.simulation.costs import CostModel


class Working(Protocol):
    """What a task needs of its device."""

    name: str
    phases: PhaseLog
    costs: CostModel

    def now_s(self) -> float: ...
    def use(self, task: Task, cpu_s: float) -> Awaitable[float]: ...
    def send(self, header: Upload, body: bytes | bytearray) -> Awaitable[int]: ...
    def reply_to(self, batch: int) -> asyncio.Future[memoryview]: ...
    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]: ...


class SimulatedUploadQueue:
    """`edge_agent.upload_queue.UploadQueue` in virtual time."""

    def __init__(self, device: Working, metrics: TaskMetrics, assignment: Assignment) -> None:
        self._device = device
        self._account = UploadAccount(metrics, device.phases, assignment.hold, device.now_s)
        self._slots = asyncio.Semaphore(assignment.upload_slots)
        self._sending: set[asyncio.Task[None]] = set()

    async def put(self, header: Upload, body: bytes | bytearray) -> None:
        """Queue an upload; waits while all slots are taken."""
        self.check()
        if self._account.keep(header, body):
            return
        if self._slots.locked():
            with self._account.blocked():
                await self._slots.acquire()
        else:
            await self._slots.acquire()
        self.check()
        self._start(header, body)

    def _start(self, header: Upload, body: bytes | bytearray) -> None:
        self._sending.add(self._device.spawn(self._deliver(header, body)))

    def check(self) -> None:
        """Raises Cancelled or TransferError if an upload could not be sent."""
        self._account.check()

    async def drained(self) -> None:
        """Returns when every upload is acknowledged."""
        while self._account.held:
            await self._slots.acquire()
            self.check()
            self._start(*self._account.held.popleft())
        await asyncio.gather(*self._sending)
        self.check()

    async def _deliver(self, header: Upload, body: bytes | bytearray) -> None:
        try:
            with self._account.sending():
                self._account.sent(await self._device.send(header, body))
        finally:
            self._slots.release()


class TaskExecutor:
    """One task of a simulated device. Its pieces of work are those of the agent (`edge_agent.training`).

    Args:
        assignment: the work that the device really does; its costs are charged.
        steps: the device core.
        builds: the agent builds its model with this task.

    Attributes:
        pieces: what they took on the reference, if the task says what they cost there.
    """

    def __init__(
        self,
        device: Working,
        task: Task,
        assignment: Assignment,
        steps: CoreSteps,
        uploads: SimulatedUploadQueue,
        metrics: TaskMetrics,
        *,
        builds: bool,
    ) -> None:
        self._device, self._task, self._assignment = device, task, assignment
        self._steps, self._uploads, self._metrics, self._builds = steps, uploads, metrics, builds
        self.pieces = Pieces(lambda: 0.0, task.costs, seed=task.assignment.seed)
        self._kinds = Kinds()
        self._samples = 0  # of the batch in hand
        self._owed_s = 0.0  # CPU seconds of what was done since the last piece that ended

    async def run(self) -> Result:
        """Returns when everything is computed; uploads may still be in the queue."""
        self._owe("receive", self._metrics.download_bytes)
        answer: Body | None = None
        try:
            while True:
                answer = await self._carry_out(self._steps.send(answer))
        except StopIteration as stop:
            result: Result = stop.value
            return result
        finally:
            self._steps.close()

    async def _carry_out(self, step: CoreStep) -> Body | None:
        """Let the time of the step pass. Returns the body of the reply that the core waits for."""
        match step:
            case Decoded(size, reply):
                await self._end("reply" if reply else "build" if self._builds else "decode", size)
            case Computed(drawn, upload):
                await self._compute(drawn, upload)
            case Encoded(raw, _, update):
                wall_s, cpu_s = await self._end("update" if update else "encode", raw)
                if not update:
                    self._metrics.encode_s += wall_s
                    self._metrics.encode_cpu_s += cpu_s
            case SendUpload(header, body, _):
                await self._uploads.put(header, body)
                self._owe("send", len(body))
            case AwaitReply(number):
                return await self._reply(number)
        return None

    def _owe(self, kind: str, size: int) -> float:
        """CPU seconds of a piece, which counts until the next one has ended."""
        known = self._task.costs
        cpu_s = self.pieces.charge(kind, size) if known else self._device.costs.piece_s(self._assignment, kind, size)
        self._owed_s += cpu_s
        return cpu_s

    async def _end(self, kind: str, size: int) -> tuple[float, float]:
        """Let the time pass until a piece has ended. Returns the wall seconds of that, and the piece's CPU seconds."""
        cpu_s = self._owe(kind, size)
        owed_s, self._owed_s = self._owed_s, 0.0
        return await self._device.use(self._task, owed_s), cpu_s

    async def _compute(self, drawn: tuple[int, ...], upload: bool) -> None:
        """Let the time of the drawn batches pass. If an upload follows, the last of them has only its features: the
        rest of it is computed after the upload."""
        for samples in drawn:
            await self._end_batch()
            self._samples = samples
        if upload:
            await self._end_computed(*self._kinds.uploading(drawn))
        else:
            await self._end_batch()
            await self._end_computed(*self._kinds.finished())

    async def _end_batch(self) -> None:
        if self._samples:
            await self._end_computed(*self._kinds.ended(self._samples))
            self._samples = 0

    async def _end_computed(self, kind: str, size: int) -> None:
        wall_s, cpu_s = await self._end(kind, size)
        self._metrics.compute_s += wall_s
        self._metrics.compute_cpu_s += cpu_s
        self._uploads.check()

    async def _reply(self, number: int) -> Body:
        start = self._device.now_s()
        await self._device.use(self._task, self._owed_s)
        self._owed_s = 0.0
        answer = await self._device.reply_to(number)
        self._owe("receive", len(answer))
        self._metrics.reply_s += self._device.now_s() - start
        return answer
