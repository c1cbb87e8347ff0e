"""One simulated device: the device core on its real shard, while virtual time passes as the cost model says."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import msgspec

from edgebed.datasets.shard import Shard
from edgebed.device.batches import ShardBatches
from edgebed.device.core import Begin, Cancelled, complete_assignment, run_task
from edgebed.device.kept import KeptStates
from edgebed.device.metrics import TaskMetrics
from edgebed.device.phases import OWN_WORK, PhaseLog, Usage
from edgebed.errors import DivergedError, TransferError, in_words, trace_of
from edgebed.link.receiver import ReceivedTransfer
from edgebed.methods.base import real_work
from edgebed.wire.messages import Assignment, Failure, Header, Reply, Task, Update, Upload
from edgebed.wire.piece_times import Phase
from orchestrator.fleet.control.run_fleet import RunFleet
from orchestrator.fleet.spec.profile import Limits
from orchestrator.simulation.costs import CostModel
from orchestrator.simulation.link import Arrival, LinkCost, Pipe, wire_bytes
from orchestrator.simulation.pace import Cpu
from orchestrator.simulation.task_executor import SimulatedUploadQueue, TaskExecutor

T = TypeVar("T")


class Leftover(msgspec.Struct, frozen=True):
    """What a device still does of a task that is no longer wanted: the step in hand, and what is on its link."""

    working: bool  # it begins no other task before the step is done
    cpu_s: float | None  # CPU seconds of that step; None: it waits for what is on the link
    transfers: list[int]  # bytes that the link has still to carry, by transfer
    phase: tuple[str, str]  # in which it does so, and the id of the task


class SimulatedDevice:
    """Does one task at a time, as `edge_agent.agent`. A newer task replaces one that has not begun.

    Args:
        limits: in force (after dilation).
        cpus: that the agent gets of them.
        begin: starts the device half of an assignment, as `core.Begin`.
        report: gets the phases at the end of each task.
        tell_s: a working device is never silent for longer, in seconds.
        built: devices whose agents have built their model; added to.
    """

    def __init__(
        self,
        name: str,
        limits: Callable[[], Limits],
        cpus: Callable[[], float],
        shard: Shard,
        costs: CostModel,
        begin: Begin,
        receiver: RunFleet,
        report: Callable[[tuple[Phase, ...]], None],
        now_ns: Callable[[], int],
        tell_s: float,
        built: set[str],
    ) -> None:
        self._built = built
        self._cpu = Cpu(cpus)
        self._connected = True
        self.name, self._limits, self.costs, self._shard, self._begin_half = name, limits, costs, shard, begin
        self._receiver, self._report, self._now_ns, self._tell_s = receiver, report, now_ns, tell_s
        self.states = KeptStates()
        self._leftover: Leftover | None = None  # of a run that goes on, until `go_on`
        self.restart_phases()
        self._reset()

    def restart_phases(self) -> None:
        """A new agent starts: what the old one had not reported is lost."""
        self.phases = PhaseLog(self._now_ns, self._usage)

    def _usage(self, name: str, length_ns: int) -> Usage:
        """CPU time of a phase, and the time for which the quota would have stopped the device."""
        if name not in OWN_WORK:
            return 0, 0, 0
        busy_ns = int(length_ns * min(1.0, self._limits().cpus))
        return busy_ns, length_ns - busy_ns, int(length_ns > busy_ns)

    def change(self, connected: bool) -> None:
        """Limits or condition have changed: work and transfers in hand go on as they now are. `connected`: whether the
        agent runs and its link is up."""
        self._connected = self._down.open = self._up.open = connected
        for each in (self._down, self._up, self._cpu):
            each.changed()

    def _reset(self) -> None:
        self._down = Pipe(self._downlink, self._now_ns, self._moved, self._tell_s)
        self._up = Pipe(self._uplink, self._now_ns, self._moved, self._tell_s)
        self._delivering = asyncio.Lock()
        self._task: Task | None = None
        self._ending = False  # does a Leftover
        self._doing: Assignment | None = None  # as `real_work` gives it
        self._cancelled: set[str] = set()
        self._next: tuple[Task, memoryview, Arrival] | None = None
        self._jobs: dict[asyncio.Task[Any], None] = {}
        self._replies: dict[int, asyncio.Future[memoryview]] = {}

    def _downlink(self) -> LinkCost:
        limits = self._limits()
        return self.costs.link(limits.latency_ms, limits.downlink_bit_s)

    def _uplink(self) -> LinkCost:
        limits = self._limits()
        return self.costs.link(limits.latency_ms, limits.uplink_bit_s)

    # ---- what comes down ----

    async def receive(self, header: Header, body: bytes | bytearray) -> Arrival:
        """A transfer to this device. Returns when it is acknowledged."""
        size = self._size(header.assignment if isinstance(header, Task) else self._doing, header, body)
        arrival = await self._down.carry(size)
        view = memoryview(body)
        if isinstance(header, Task):
            self._take(header, view, arrival)
        elif isinstance(header, Reply):
            self._answer(header, view)
        await asyncio.sleep(self._downlink().ack_s)
        return arrival

    def _take(self, task: Task, body: memoryview, arrival: Arrival) -> None:
        if task.id in self._cancelled:
            return
        self._next = (task, body, arrival)
        if self._task is None and not self._ending:
            self._begin()

    def _begin(self) -> None:
        if self._next is None:
            return
        (task, body, arrival), self._next = self._next, None
        self._task = task
        metrics = TaskMetrics(arrival.bytes, (arrival.last_ns - arrival.first_ns) / 1e9)
        self.spawn(self._work(task, body, metrics))

    def _answer(self, reply: Reply, body: memoryview) -> None:
        if self._task is not None and reply.task == self._task.id:
            waiting = self.reply_to(reply.batch)
            if not waiting.done():
                waiting.set_result(body)

    def reply_to(self, batch: int) -> asyncio.Future[memoryview]:
        """The body of the reply to an upload of the current task."""
        return self._replies.setdefault(batch, asyncio.get_running_loop().create_future())

    def cancel(self, task: str) -> None:
        """The task is no longer wanted. If it has begun, it stops at its next step."""
        self._cancelled.add(task)
        if self._next is not None and self._next[0].id == task:
            self._next = None
        for waiting in self._replies.values():
            if self._task is not None and self._task.id == task and not waiting.done():
                waiting.set_exception(Cancelled("the task was cancelled"))
                waiting.exception()  # marks it as seen: asyncio warns of errors that nobody reads

    def die(self) -> None:
        """The agent's process ends, and with it all its work."""
        self._built.discard(self.name)
        self.states = KeptStates()
        self.stop()
        self.restart_phases()

    def stop(self) -> None:
        """End all work; the agent stays."""
        for job in tuple(self._jobs):
            job.cancel()
        self._reset()

    # ---- what is left of a task that is not wanted any more ----

    @property
    def busy(self) -> bool:
        return bool(self._jobs) or self._leftover is not None

    def interrupt(self) -> Leftover:
        """End all work; returns what is left of it, for `go_on`. No task is wanted at this time."""
        left, self._leftover = self._leftover, None
        if left is None:
            working, phase = self._task is not None or self._ending, self.phases.open[:2]
            left = Leftover(working, self._cpu.take_left() if working else None, self._up.left(), phase)
        self.stop()
        return left

    def go_on(self, left: Leftover) -> None:
        """Do what is left of a task, as the agent does: it stops at its next step."""
        self.phases.enter(*left.phase)
        self._down.open = self._up.open = self._connected
        sending = [self.spawn(self._up.carry(size)) for size in left.transfers]
        if left.working:
            self._ending = True
            self.spawn(self._end_work(left.cpu_s, sending))

    async def _end_work(self, cpu_s: float | None, sending: Sequence[asyncio.Task[Any]]) -> None:
        if cpu_s is None:
            await asyncio.gather(*sending)
        else:
            await self._cpu.use(cpu_s)
        self._ending = False
        self._wait()

    def restore(self, phase: tuple[str, str, int], left: Leftover | None) -> None:
        """The open phase, and a Leftover that the next `interrupt` returns."""
        self.phases.reopen(*phase)
        self._leftover = left

    # ---- one task ----

    async def _work(self, task: Task, body: memoryview, metrics: TaskMetrics) -> None:
        try:
            await self._train(task, body, metrics)
        except Cancelled:
            pass
        except TransferError as error:
            await self._fail(task, str(error))
        except Exception as error:  # as in the agent: an error of the half fails its task and no other
            await self._fail(task, in_words(error), isinstance(error, DivergedError), trace_of(error))
        self._task = self._doing = None
        self._replies.clear()
        self._wait()

    def _wait(self) -> None:
        """No task is in hand: begin the next one, if it has come."""
        self.phases.enter("waiting", "")
        self._report(self.phases.take())
        self._begin()

    async def _train(self, task: Task, body: memoryview, metrics: TaskMetrics) -> None:
        assignment = complete_assignment(task.assignment, self._limits().cpus, self._shard)
        doing = self._doing = real_work(assignment)
        builds = self.name not in self._built
        self._built.add(self.name)
        batches = ShardBatches(self._shard, assignment)
        steps = run_task(task, assignment, body, self._begin_half, batches, self.phases, self.states)
        uploads = SimulatedUploadQueue(self, metrics, doing)
        executor = TaskExecutor(self, task, doing, steps, uploads, metrics, builds=builds)
        result = await executor.run()
        self.phases.enter("upload_tail")
        await uploads.drained()
        self._check(task)
        await self._send_end(Update(self.name, task.id, metrics.report(result, work=executor.pieces)), result.body)

    async def _fail(self, task: Task, why: str, diverged: bool = False, trace: str = "") -> None:
        self.phases.enter("upload_tail")
        with contextlib.suppress(Cancelled):
            await self._send_end(Failure(self.name, task.id, why, diverged, trace), b"")

    async def _send_end(self, header: Update | Failure, body: bytes | bytearray) -> None:
        """Send the update or the failure of a task. A refusal means that it came too late, and is not an error."""
        with contextlib.suppress(TransferError):
            await self.send(header, body)

    def now_s(self) -> float:
        return self._now_ns() / 1e9

    async def use(self, task: Task, cpu_s: float) -> float:
        """Compute for so many CPU seconds. Returns the wall seconds that it took."""
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
        """Returns the bytes of the payload at the acknowledgement. Raises TransferRefused if it is not wanted."""
        size = self._size(self._doing, header, body)
        if header.task in self._cancelled:
            raise Cancelled("the task was cancelled")
        self._receiver.admit(self.name, header, len(body))
        arrival = await self._up.carry(size)
        async with self._delivering:  # one at a time, in the order of sending
            view = memoryview(body)
            await self._receiver.deliver(
                ReceivedTransfer(self.name, header, view, arrival.first_ns, arrival.last_ns, arrival.bytes)
            )
        await asyncio.sleep(self._uplink().ack_s)
        return size - (wire_bytes(header, len(body)) - len(body))

    def _size(self, doing: Assignment | None, header: Header, body: bytes | bytearray) -> int:
        if doing is None:  # the task has ended: the transfer is not wanted
            return wire_bytes(header, len(body))
        return self.costs.transfer_bytes(doing, header, len(body))

    def beat(self) -> None:
        """A heartbeat. It counts as progress while the device computes."""
        if self._connected and (self._task is not None or self._ending) and self.phases.name in OWN_WORK:
            self._moved()

    def _moved(self) -> None:
        self._receiver.progress(self.name)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a job that ends with the device's work."""
        job = asyncio.ensure_future(work)
        self._jobs[job] = None
        job.add_done_callback(self._ended)
        return job

    def _ended(self, job: asyncio.Task[Any]) -> None:
        self._jobs.pop(job, None)
        if not job.cancelled() and (error := job.exception()) is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"a job of the simulated device {self.name} failed", "exception": error}
            )
