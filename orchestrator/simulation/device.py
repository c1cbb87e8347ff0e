"""One simulated device: the real device half over its real shard, while virtual time passes as the cost model says."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import msgspec

from edgebed.datasets.shard import Shard
from edgebed.errors import DivergedError, TransferError, in_words, trace_of
from edgebed.link.receiver import ReceivedTransfer
from edgebed.methods.base import Trained, real_work
from edgebed.wire.codecs import LOSSLESS, decode_tensors, encode_tensors
from edgebed.wire.messages import Assignment, Failure, Header, Phase, Reply, Report, Task, Update, Upload
from orchestrator.simulation.costs import CostModel, Device
from orchestrator.simulation.halves import Start
from orchestrator.simulation.link import Arrival, Pipe, wire_bytes
from orchestrator.simulation.phases import OWN_WORK, Phases
from orchestrator.simulation.task_executor import Cancelled, SimulatedUploadQueue, TaskExecutor, TaskMetrics, raw_bytes


class Receiver(Protocol):
    """What a device's transfers meet: the round driver, through the fleet."""

    def admit(self, peer: str, header: Header, size: int) -> None: ...
    async def deliver(self, inbound: ReceivedTransfer) -> None: ...
    def progress(self, device: str) -> None: ...


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
        self.who, self.costs, self._shard, self._start = who, costs, shard, start
        self._receiver, self._report, self._now_ns, self._tell_s = receiver, report, now_ns, tell_s
        self.name = who().name
        self.phases = Phases(now_ns, lambda: who().limits.cpus)
        self._reset()

    def _reset(self) -> None:
        self._down = Pipe(lambda: self.costs.downlink(self.who()), self._now_ns, self._moved, self._tell_s)
        self._up = Pipe(lambda: self.costs.uplink(self.who()), self._now_ns, self._moved, self._tell_s)
        self._delivering = asyncio.Lock()
        self._task: Task | None = None
        self._doing: Assignment | None = None  # the work that is really done
        self._cancelled: set[str] = set()
        self._next: tuple[Task, memoryview, Arrival] | None = None
        self._jobs: set[asyncio.Task[Any]] = set()
        self._replies: dict[int, asyncio.Future[memoryview]] = {}

    # ---- what comes down ----

    async def receive(self, header: Header, body: bytes | bytearray) -> Arrival:
        """A transfer to this device; returns when it has been acknowledged."""
        size = self._size(header.assignment if isinstance(header, Task) else self._doing, header, body)
        arrival = await self._down.carry(size)
        view = memoryview(body)
        if isinstance(header, Task):
            self._take(header, view, arrival)
        elif isinstance(header, Reply):
            self._answer(header, view)
        await asyncio.sleep(self.costs.downlink(self.who()).ack_s)
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
        self.spawn(self._work(task, body, TaskMetrics(arrival)))

    def _answer(self, reply: Reply, body: memoryview) -> None:
        if self._task is not None and reply.task == self._task.id:
            waiting = self.reply_to(reply.batch)
            if not waiting.done():
                waiting.set_result(body)

    def reply_to(self, batch: int) -> asyncio.Future[memoryview]:
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

    async def _work(self, task: Task, body: memoryview, meter: TaskMetrics) -> None:
        try:
            await self._train(task, body, meter)
        except Cancelled:
            pass
        except TransferError as error:
            await self._fail(task, f"an upload could not be delivered: {error}")
        except Exception as error:  # as on a device: whatever a half raises fails its task, and no other
            await self._fail(task, in_words(error), isinstance(error, DivergedError), trace_of(error))
        self._task = self._doing = None
        self._replies.clear()
        self.phases.enter("waiting", "")
        self._report(self.phases.take())
        self._begin()

    async def _train(self, task: Task, body: memoryview, meter: TaskMetrics) -> None:
        who = self.who()
        assignment = msgspec.structs.replace(task.assignment, cpus=who.limits.cpus, privacy=self._shard.privacy)
        doing = self._doing = real_work(assignment)
        self.phases.enter("decode", task.id)
        first = self.name not in self._built
        self._built.add(self.name)
        await self.use(task, self.costs.decode_s(who, doing, len(body), first))
        half = self._start(self.name, assignment, decode_tensors(body))
        outbox = SimulatedUploadQueue(self, meter, doing.hold)
        trained = await TaskExecutor(self, task, doing, half, outbox, meter).run()
        self.phases.enter("encode")
        update = encode_tensors(trained.weights, LOSSLESS)
        await self.use(task, self.costs.encode_s(who, doing, raw_bytes(trained.weights), LOSSLESS))
        self.phases.enter("upload_tail")
        await outbox.drained()
        self._check(task)
        report = self._made(trained, meter)
        await self.send(Update(self.name, task.id, report), update)

    def _made(self, trained: Trained, meter: TaskMetrics) -> Report:
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
            encode_cpu_s=meter.encode_cpu_s,
            notes=trained.notes,
        )

    async def _fail(self, task: Task, why: str, diverged: bool = False, trace: str = "") -> None:
        self.phases.enter("upload_tail")
        with contextlib.suppress(TransferError, Cancelled):
            await self.send(Failure(self.name, task.id, why, diverged, trace), b"")

    def now_s(self) -> float:
        return self._now_ns() / 1e9

    async def use(self, task: Task, cpu_s: float) -> float:
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

    async def send(self, header: Upload | Update | Failure, body: bytes | bytearray) -> int:
        """Returns the payload's bytes at the acknowledgement; raises TransferRefused where it is not wanted."""
        size = self._size(self._doing, header, body)
        if header.task in self._cancelled:
            raise Cancelled("the task was cancelled")
        cost = self.costs.uplink(self.who())
        # Half of an upload's CPU time is for hearing that it has arrived: who has used its quota up hears of it late.
        send_s, hear_s = (cost.cpu_s / 2, cost.cpu_s / 2) if isinstance(header, Upload) else (cost.update_cpu_s, 0.0)
        await self._cpu.use(send_s, urgent=True)
        self._receiver.admit(self.name, header, len(body))
        arrival = await self._up.carry(size)
        async with self._delivering:  # one after the other, in the order they were sent
            view = memoryview(body)
            await self._receiver.deliver(
                ReceivedTransfer(self.name, header, view, arrival.first_ns, arrival.last_ns, arrival.bytes)
            )
        await asyncio.sleep(self.costs.uplink(self.who()).ack_s)
        await self._cpu.use(hear_s, urgent=True)
        return size - (wire_bytes(header, len(body)) - len(body))

    def _size(self, doing: Assignment | None, header: Header, body: bytes | bytearray) -> int:
        if doing is None:  # the task has ended: nobody wants it
            return wire_bytes(header, len(body))
        return self.costs.transfer_bytes(doing, header, len(body))

    def beat(self) -> None:
        """A heartbeat: whoever computes is heard of."""
        if self._task is not None and self.phases.name in OWN_WORK:
            self._moved()

    def _moved(self) -> None:
        self._receiver.progress(self.name)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
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
