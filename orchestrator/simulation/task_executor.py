"""Drives the device core in virtual time: lets the cost of every step pass, and waits for uploads and replies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from edgebed.device.core import AwaitReply, Body, Computed, CoreStep, CoreSteps, Decoded, Encoded, Result, SendUpload
from edgebed.device.metrics import TaskMetrics
from edgebed.device.phases import PhaseLog
from edgebed.device.uploads import UploadAccount
from edgebed.wire.messages import Assignment, Task, Upload
from orchestrator.simulation.costs import BatchCost, CostModel, Device


class Working(Protocol):
    """What a task needs of its device."""

    name: str
    phases: PhaseLog
    costs: CostModel
    who: Callable[[], Device]

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
    """One task of a simulated device.

    Args:
        assignment: the work that the device really does; its costs are charged.
        steps: the device core.
        first: the agent builds its model with this task.
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
        first: bool,
    ) -> None:
        self._device, self._task, self._assignment = device, task, assignment
        self._steps, self._uploads, self._metrics = steps, uploads, metrics
        self._first = first
        self._owed: list[float] = []  # CPU seconds of a batch whose features are sent already
        self._last: BatchCost | None = None

    async def run(self) -> Result:
        """Returns when everything is computed; uploads may still be in the queue."""
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
        device, costs = self._device, self._device.costs
        match step:
            case Decoded(size, reply=True):
                await device.use(self._task, costs.reply_s(device.who(), self._assignment, size))
            case Decoded(size):
                await device.use(self._task, costs.decode_s(device.who(), self._assignment, size, self._first))
            case Computed(drawn, upload):
                await self._compute(drawn, upload)
            case Encoded(raw, codec, update):
                cpu_s = costs.encode_s(device.who(), self._assignment, raw, codec)
                wall_s = await device.use(self._task, cpu_s)
                if not update:
                    self._metrics.encode_s += wall_s
                    self._metrics.encode_cpu_s += cpu_s
            case SendUpload(header, body, _):
                await self._uploads.put(header, body)
            case AwaitReply(number):
                return await self._reply(number)
        return None

    async def _compute(self, drawn: tuple[int, ...], upload: bool) -> None:
        """Let the time of the drawn batches pass. If an upload follows, the last batch is charged only to its features:
        the rest of it is computed after the upload."""
        who = self._device.who()
        costs = [self._device.costs.batch(who, self._assignment, samples) for samples in drawn]
        parts, self._owed = [*self._owed, *(cost.total_s for cost in costs)], []
        if upload and costs:
            parts[-1], self._owed = costs[-1].forward_s, [costs[-1].rest_s]
            self._last = costs[-1]
        elif upload and self._last is not None and not parts:
            parts = [self._last.forward_s]  # an upload without a new batch: its features are computed again
        for cpu_s in parts:
            self._metrics.compute_s += await self._device.use(self._task, cpu_s)
            self._metrics.compute_cpu_s += cpu_s
            self._uploads.check()

    async def _reply(self, number: int) -> Body:
        start = self._device.now_s()
        answer = await self._device.reply_to(number)
        self._metrics.reply_s += self._device.now_s() - start
        return answer
