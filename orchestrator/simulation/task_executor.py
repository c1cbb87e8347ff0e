"""A half's way through virtual time on a simulated device: batches, uploads through a bounded queue, replies."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from edgebed.errors import EdgebedError, TransferError
from edgebed.methods.base import Outgoing, Trained, check_hold
from edgebed.models.staged import Weights
from edgebed.wire.codecs import decode_tensors, encode_tensors
from edgebed.wire.messages import Assignment, Task, Upload
from orchestrator.simulation.costs import BatchCost, CostModel, Device
from orchestrator.simulation.halves import Execution
from orchestrator.simulation.link import Arrival
from orchestrator.simulation.phases import Phases

SLOTS = 2
"""Encoded uploads an agent holds at once (`edge_agent.upload_queue`): one on the wire, one ready to follow it."""


class Cancelled(EdgebedError):
    """The orchestrator wants this task no longer."""


class TaskMetrics:
    """What a device measures during one task."""

    def __init__(self, arrival: Arrival) -> None:
        self.download_bytes = arrival.bytes
        self.download_s = (arrival.last_ns - arrival.first_ns) / 1e9
        self.compute_s = self.compute_cpu_s = self.encode_s = self.encode_cpu_s = 0.0
        self.blocked_s = self.reply_s = self.upload_s = 0.0
        self.upload_bytes = 0
        self.batches = 0


class Working(Protocol):
    """What a half needs of its device."""

    name: str
    phases: Phases
    costs: CostModel
    who: Callable[[], Device]

    def now_s(self) -> float: ...
    def use(self, task: Task, cpu_s: float) -> Awaitable[float]: ...
    def send(self, header: Upload, body: bytes | bytearray) -> Awaitable[int]: ...
    def reply_to(self, batch: int) -> asyncio.Future[memoryview]: ...
    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]: ...


class SimulatedUploadQueue:
    """The bounded queue between training and uplink, as `edge_agent.upload_queue`."""

    def __init__(self, device: Working, meter: TaskMetrics, hold: bool = False) -> None:
        self._device, self._meter = device, meter
        self._hold, self._held = hold, deque[tuple[Upload, bytes | bytearray]]()
        self._slots = asyncio.Semaphore(SLOTS)
        self._sending: set[asyncio.Task[None]] = set()
        self._error: EdgebedError | None = None
        self._in_flight, self._since = 0, 0.0

    async def put(self, header: Upload, body: bytes | bytearray) -> None:
        self.check()
        if self._hold:
            self._held.append((header, body))
            return
        if self._slots.locked():
            start, before = self._device.now_s(), self._device.phases.enter("blocked")
            await self._slots.acquire()
            self._device.phases.enter(before)
            self._meter.blocked_s += self._device.now_s() - start
        else:
            await self._slots.acquire()
        self.check()
        self._sending.add(self._device.spawn(self._deliver(header, body)))

    def check(self) -> None:
        if isinstance(self._error, Cancelled):
            raise self._error
        if self._error is not None:
            raise TransferError(str(self._error))

    async def drained(self) -> None:
        while self._held:
            await self._slots.acquire()
            self.check()
            self._sending.add(self._device.spawn(self._deliver(*self._held.popleft())))
        await asyncio.gather(*self._sending)
        self.check()

    async def _deliver(self, header: Upload, body: bytes | bytearray) -> None:
        if self._in_flight == 0:
            self._since = self._device.now_s()
        self._in_flight += 1
        try:
            sent = await self._device.send(header, body)
            self._meter.upload_bytes += sent  # not in one line: another upload may have ended meanwhile
        except EdgebedError as error:
            self._error = self._error or error
        finally:
            self._in_flight -= 1
            if self._in_flight == 0:
                self._meter.upload_s += self._device.now_s() - self._since
            self._slots.release()


class TaskExecutor:
    """Drives a half through virtual time, as `edge_agent.training` does through real time. `assignment` is the work
    that is really done."""

    def __init__(
        self,
        device: Working,
        task: Task,
        assignment: Assignment,
        half: Execution,
        outbox: SimulatedUploadQueue,
        meter: TaskMetrics,
    ) -> None:
        self._device, self._task, self._assignment = device, task, assignment
        self._half, self._outbox, self._meter = half, outbox, meter
        self._owed: list[float] = []  # of a batch whose features have left
        self._last: BatchCost | None = None

    async def run(self) -> Trained:
        reply: Weights | None = None
        batch = 0
        while True:
            self._device.phases.enter("compute")
            moment = self._half.next(reply)
            await self._compute(moment.drawn, uploads=moment.out is not None)
            if moment.out is None:
                assert moment.end is not None
                return moment.end
            reply = await self._exchange(moment.out, batch)
            batch += 1

    async def _compute(self, drawn: tuple[int, ...], uploads: bool) -> None:
        """Time of the batches that were drawn; the last one's rest comes after the upload that it ends in."""
        who = self._device.who()
        costs = [self._device.costs.batch(who, self._assignment, samples) for samples in drawn]
        parts, self._owed = [*self._owed, *(cost.total_s for cost in costs)], []
        if uploads and costs:
            parts[-1], self._owed = costs[-1].forward_s, [costs[-1].rest_s]
            self._last = costs[-1]
        elif uploads and self._last is not None and not parts:
            parts = [self._last.forward_s]  # an upload without a batch of its own: features are made again
        for cpu_s in parts:
            self._meter.compute_s += await self._device.use(self._task, cpu_s)
            self._meter.compute_cpu_s += cpu_s
            self._outbox.check()

    async def _exchange(self, out: Outgoing, batch: int) -> Weights | None:
        device, costs = self._device, self._device.costs
        device.phases.enter("encode")
        body = encode_tensors(out.tensors, self._assignment.codec)
        cpu_s = costs.encode_s(device.who(), self._assignment, raw_bytes(out.tensors), self._assignment.codec)
        self._meter.encode_s += await device.use(self._task, cpu_s)
        self._meter.encode_cpu_s += cpu_s
        await self._outbox.put(Upload(device.name, self._task.id, batch, out.samples), body)
        if not out.wait:
            return None
        check_hold(self._assignment)
        return await self._reply(batch)

    async def _reply(self, batch: int) -> Weights:
        device = self._device
        device.phases.enter("reply_wait")
        start = device.now_s()
        answer = await device.reply_to(batch)
        self._meter.reply_s += device.now_s() - start
        device.phases.enter("decode")
        await device.use(self._task, device.costs.reply_s(device.who(), self._assignment, len(answer)))
        return decode_tensors(answer)


def raw_bytes(tensors: Weights) -> int:
    """Bytes of the tensors before any codec."""
    return sum(value.numel() * value.element_size() for value in tensors.values())
