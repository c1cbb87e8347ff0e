"""One simulated device: the real device half over its real shard, while virtual time passes as the cost model says."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import msgspec

from edgebed.datasets.shard import Shard
from edgebed.errors import DivergedError, EdgebedError, TransferError, TransferRefused
from edgebed.link.inbox import Inbound
from edgebed.methods.base import Outgoing, Trained
from edgebed.models.staged import Weights
from edgebed.wire.codecs import decode_tensors, encode_tensors
from edgebed.wire.messages import Codec, Failure, Header, Phase, Reply, Report, Task, Update, Upload
from orchestrator.simulation.costs import BatchCost, CostModel, Device
from orchestrator.simulation.halves import Execution, Start
from orchestrator.simulation.link import Arrival, Pipe, wire_bytes
from orchestrator.simulation.phases import OWN_WORK, Phases

SLOTS = 2
"""Encoded uploads an agent holds at once (`edge_agent.outbox`): one on the wire, one ready to follow it."""

LOSSLESS = Codec()


class Receiver(Protocol):
    """What a device's transfers meet: the round driver, through the fleet."""

    def admit(self, peer: str, header: Header, size: int) -> None: ...
    async def deliver(self, inbound: Inbound) -> None: ...
    def progress(self, device: str) -> None: ...


class Cancelled(EdgebedError):
    """The orchestrator wants this task no longer."""


class _Meter:
    """What a device measures during one task."""

    def __init__(self, arrival: Arrival) -> None:
        self.download_bytes = arrival.bytes
        self.download_s = (arrival.last_ns - arrival.first_ns) / 1e9
        self.compute_s = self.compute_cpu_s = self.encode_s = self.blocked_s = self.reply_s = self.upload_s = 0.0
        self.upload_bytes = 0
        self.batches = 0


class SimulatedDevice:
    """Works on one task at a time, as `edge_agent.agent`; a newer task replaces what was not begun.

    Args:
        who: name, profile and limits now.
        start: begins a device half.
        report: told of phases, and the device's last word in a task.
        tell_s: no silence of a working device is longer.
        built: devices whose agents have built their model.
    """

    def __init__(
        self,
        who: Callable[[], Device],
        shard: Shard,
        costs: CostModel,
        start: Start,
        receiver: Receiver,
        report: Callable[[tuple[Phase, ...]], None],
        now_ns: Callable[[], int],
        tell_s: float,
        built: set[str],
    ) -> None:
        self._built = built
        self._cpu = costs.cpu(who)
        self._who, self._shard, self._costs, self._start = who, shard, costs, start
        self._receiver, self._report, self._now_ns, self._tell_s = receiver, report, now_ns, tell_s
        self.name = who().name
        self.phases = Phases(now_ns, lambda: who().limits.cpus)
        self._reset()

    def _reset(self) -> None:
        self._down = Pipe(lambda: self._costs.downlink(self._who()), self._now_ns, self._moved, self._tell_s)
        self._up = Pipe(lambda: self._costs.uplink(self._who()), self._now_ns, self._moved, self._tell_s)
        self._delivering = asyncio.Lock()
        self._task: Task | None = None
        self._cancelled: set[str] = set()
        self._next: tuple[Task, memoryview, Arrival] | None = None
        self._jobs: set[asyncio.Task[Any]] = set()
        self._replies: dict[int, asyncio.Future[memoryview]] = {}

    # ---- what comes down ----

    async def receive(self, header: Header, body: bytes | bytearray) -> Arrival:
        """A transfer to this device; returns when it has been acknowledged."""
        task = header if isinstance(header, Task) else self._task
        size = self._size(task, header, body)
        arrival = await self._down.carry(size)
        view = memoryview(body)
        if isinstance(header, Task):
            self._take(header, view, arrival)
        elif isinstance(header, Reply):
            self._answer(header, view)
        await asyncio.sleep(self._costs.downlink(self._who()).ack_s)
        return arrival

    def _take(self, task: Task, body: memoryview, arrival: Arrival) -> None:
        if task.id in self._cancelled:
            return
        self._next = (task, body, arrival)
        if self._task is None:
            self._begin()

    def _begin(self) -> None:
        if self._next is None:
            return
        (task, body, arrival), self._next = self._next, None
        self._task = task
        self._spawn(self._work(task, body, _Meter(arrival)))

    def _answer(self, reply: Reply, body: memoryview) -> None:
        if self._task is not None and reply.task == self._task.id:
            waiting = self._reply_to(reply.batch)
            if not waiting.done():
                waiting.set_result(body)

    def _reply_to(self, batch: int) -> asyncio.Future[memoryview]:
        return self._replies.setdefault(batch, asyncio.get_running_loop().create_future())

    def cancel(self, task: str) -> None:
        """The task is wanted no longer: what has begun stops at its next batch."""
        self._cancelled.add(task)
        if self._next is not None and self._next[0].id == task:
            self._next = None
        for waiting in self._replies.values():
            if self._task is not None and self._task.id == task and not waiting.done():
                waiting.set_exception(Cancelled("the task was cancelled"))
                waiting.exception()  # looked at, in case nobody waits

    def die(self) -> None:
        """The agent's process ends: nothing more comes of it."""
        self._built.discard(self.name)
        self.stop()
        self.phases.restart()

    def stop(self) -> None:
        """Whatever it does ends; the agent stays."""
        for job in tuple(self._jobs):
            job.cancel()
        self._reset()

    # ---- one task ----

    async def _work(self, task: Task, body: memoryview, meter: _Meter) -> None:
        try:
            await self._train(task, body, meter)
        except Cancelled:
            pass
        except TransferError as error:
            await self._fail(task, f"an upload could not be delivered: {error}")
        except EdgebedError as error:
            await self._fail(task, f"{error} {error.cure}".strip(), isinstance(error, DivergedError))
        self._task = None
        self._replies.clear()
        self.phases.enter("waiting", "")
        self._report(self.phases.take())
        self._begin()

    async def _train(self, task: Task, body: memoryview, meter: _Meter) -> None:
        who = self._who()
        assignment = msgspec.structs.replace(task.assignment, cpus=who.limits.cpus, privacy=self._shard.privacy)
        self.phases.enter("decode", task.id)
        first = self.name not in self._built
        self._built.add(self.name)
        await self._use(task, self._costs.decode_s(who, assignment, len(body), first))
        half = self._start(self.name, assignment, decode_tensors(body))
        outbox = _Outbox(self, meter)
        trained = await _Driving(self, task, assignment, half, outbox, meter).run()
        self.phases.enter("encode")
        update = encode_tensors(trained.weights, LOSSLESS)
        await self._use(task, self._costs.encode_s(who, assignment, _raw(trained.weights), LOSSLESS))
        self.phases.enter("upload_tail")
        await outbox.drained()
        self._check(task)
        report = self._made(trained, meter)
        await self._send(Update(self.name, task.id, report), update)

    def _made(self, trained: Trained, meter: _Meter) -> Report:
        return Report(
            samples=self._shard.samples,
            batches=trained.batches,
            loss=trained.loss,
            compute_s=meter.compute_s,
            compute_cpu_s=meter.compute_cpu_s,
            throttled_s=None,
            download_bytes=meter.download_bytes,
            download_s=meter.download_s,
            upload_bytes=meter.upload_bytes,
            upload_s=meter.upload_s,
            blocked_s=meter.blocked_s,
            reply_s=meter.reply_s,
            encode_s=meter.encode_s,
            notes=trained.notes,
        )

    async def _fail(self, task: Task, why: str, diverged: bool = False) -> None:
        self.phases.enter("upload_tail")
        with contextlib.suppress(TransferError, Cancelled):
            await self._send(Failure(self.name, task.id, why, diverged), b"")

    async def _use(self, task: Task, cpu_s: float) -> float:
        """Own work of so many CPU seconds; returns the wall seconds that it took."""
        self._check(task)
        start = self._now_ns()
        await self._cpu.use(cpu_s)
        self._check(task)
        return (self._now_ns() - start) / 1e9

    def _check(self, task: Task) -> None:
        if task.id in self._cancelled:
            raise Cancelled("the task was cancelled")

    # ---- what goes up ----

    async def _send(self, header: Upload | Update | Failure, body: bytes | bytearray) -> None:
        """Returns at the acknowledgement; raises TransferRefused where it is not wanted."""
        size = self._size(self._task, header, body)
        if header.task in self._cancelled:
            raise Cancelled("the task was cancelled")
        cost = self._costs.uplink(self._who())
        await self._cpu.use(cost.cpu_s if isinstance(header, Upload) else cost.update_cpu_s, urgent=True)
        self._receiver.admit(self.name, header, len(body))
        arrival = await self._up.carry(size)
        async with self._delivering:  # one after the other, in the order they were sent
            view = memoryview(body)
            await self._receiver.deliver(
                Inbound(self.name, header, view, arrival.first_ns, arrival.last_ns, arrival.bytes)
            )
        await asyncio.sleep(self._costs.uplink(self._who()).ack_s)

    def _size(self, task: Task | None, header: Header, body: bytes | bytearray) -> int:
        if task is None:  # the task has ended: nobody wants it
            return wire_bytes(header, len(body))
        return self._costs.transfer_bytes(task.assignment, header, len(body))

    def beat(self) -> None:
        """A heartbeat: whoever computes is heard of."""
        if self._task is not None and self.phases.name in OWN_WORK:
            self._moved()

    def _moved(self) -> None:
        self._receiver.progress(self.name)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        job = asyncio.ensure_future(work)
        self._jobs.add(job)
        job.add_done_callback(self._ended)
        return job

    def _ended(self, job: asyncio.Task[None]) -> None:
        self._jobs.discard(job)
        if not job.cancelled() and (error := job.exception()) is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"a job of the simulated device {self.name} failed", "exception": error}
            )


class _Outbox:
    """The bounded queue between training and uplink, as `edge_agent.outbox`."""

    def __init__(self, device: SimulatedDevice, meter: _Meter) -> None:
        self._device, self._meter = device, meter
        self._slots = asyncio.Semaphore(SLOTS)
        self._sending: set[asyncio.Task[None]] = set()
        self._error: EdgebedError | None = None
        self._in_flight, self._since = 0, 0.0

    async def put(self, header: Upload, body: bytes | bytearray) -> None:
        self.check()
        if self._slots.locked():
            start, before = _now_s(self._device), self._device.phases.enter("blocked")
            await self._slots.acquire()
            self._device.phases.enter(before)
            self._meter.blocked_s += _now_s(self._device) - start
        else:
            await self._slots.acquire()
        self.check()
        self._sending.add(self._device._spawn(self._deliver(header, body)))

    def check(self) -> None:
        if isinstance(self._error, Cancelled):
            raise self._error
        if self._error is not None:
            raise TransferError(str(self._error))

    async def drained(self) -> None:
        await asyncio.gather(*self._sending)
        self.check()

    async def _deliver(self, header: Upload, body: bytes | bytearray) -> None:
        if self._in_flight == 0:
            self._since = _now_s(self._device)
        self._in_flight += 1
        try:
            await self._device._send(header, body)
            self._meter.upload_bytes += len(body)
        except EdgebedError as error:
            self._error = self._error or error
        finally:
            self._in_flight -= 1
            if self._in_flight == 0:
                self._meter.upload_s += _now_s(self._device) - self._since
            self._slots.release()


class _Driving:
    """Drives a half through virtual time, as `edge_agent.training` does through real time."""

    def __init__(
        self,
        device: SimulatedDevice,
        task: Task,
        assignment: Any,
        half: Execution,
        outbox: _Outbox,
        meter: _Meter,
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
        who = self._device._who()
        costs = [self._device._costs.batch(who, self._assignment, samples) for samples in drawn]
        parts, self._owed = [*self._owed, *(cost.total_s for cost in costs)], []
        if uploads and costs:
            parts[-1], self._owed = costs[-1].forward_s, [costs[-1].rest_s]
            self._last = costs[-1]
        elif uploads and self._last is not None and not parts:
            parts = [self._last.forward_s]  # an upload without a batch of its own: features are made again
        for cpu_s in parts:
            self._meter.compute_s += await self._device._use(self._task, cpu_s)
            self._meter.compute_cpu_s += cpu_s
            self._outbox.check()

    async def _exchange(self, out: Outgoing, batch: int) -> Weights | None:
        device, costs = self._device, self._device._costs
        device.phases.enter("encode")
        body = encode_tensors(out.tensors, self._assignment.codec)
        cpu_s = costs.encode_s(device._who(), self._assignment, _raw(out.tensors), self._assignment.codec)
        self._meter.encode_s += await device._use(self._task, cpu_s)
        await self._outbox.put(Upload(device.name, self._task.id, batch, out.samples), body)
        return await self._reply(batch) if out.wait else None

    async def _reply(self, batch: int) -> Weights:
        device = self._device
        device.phases.enter("reply_wait")
        start = _now_s(device)
        answer = await device._reply_to(batch)
        self._meter.reply_s += _now_s(device) - start
        device.phases.enter("decode")
        await device._use(self._task, device._costs.decode_s(device._who(), self._assignment, len(answer), False))
        return decode_tensors(answer)


def _now_s(device: SimulatedDevice) -> float:
    return device._now_ns() / 1e9


def _raw(tensors: Weights) -> int:
    """Bytes of the tensors before any codec."""
    return sum(value.numel() * value.element_size() for value in tensors.values())


__all__ = ["Receiver", "SimulatedDevice", "TransferRefused"]
