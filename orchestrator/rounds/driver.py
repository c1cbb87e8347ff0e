"""Carries out one round: sends tasks, passes uploads to the server halves, acts on what the round machine decides."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import msgspec

from edgebed.errors import (
    MOST_TRACE,
    DivergedError,
    EdgebedError,
    RunError,
    TransferError,
    TransferRefused,
    in_words,
    printable,
    trace_of,
)
from edgebed.link.endpoint import ReceivedTransfer
from edgebed.methods.base import Contribution
from edgebed.models.staged import Weights
from edgebed.wire.codecs import LOSSLESS, decode_tensors, encode_tensors
from edgebed.wire.messages import Cancel, Failure, Header, Reply, Task, Update, Upload
from edgebed.wire.texts import MOST_TEXT
from orchestrator.clock import now_ns, now_s, unique_ns
from orchestrator.fleet.control.interfaces import Sender
from orchestrator.records.host_records import HalfWork, ServerStep
from orchestrator.records.types import DeviceOut, Fault, Record, ReplyDelivered, TaskDelivered, TaskSent
from orchestrator.rounds import machine as m
from orchestrator.rounds.bounds import bounds_of, misfit
from orchestrator.rounds.checks import most_bytes, transfer_fault, update_fault
from orchestrator.rounds.device_work import DeviceWork, done_record, outcome, update_record, upload_record
from orchestrator.rounds.job import RoundJob, RoundResult
from orchestrator.rounds.lateness import LEAST_S, OUT_OF_STEP
from orchestrator.rounds.settings import RoundSettings
from orchestrator.training.server import HalfTrainer


class RoundDriver:
    """Carries out one round. The fleet calls `admit`, `deliver`, `progress`, `heard`, `lost`.

    Args:
        trainer: has no other round meanwhile.
        give_up: called with a device that was lost in the round, and why.
    """

    def __init__(
        self,
        endpoint: Sender,
        trainer: HalfTrainer,
        record: Callable[[Record], None],
        give_up: Callable[[str, str], None],
        settings: RoundSettings,
        job: RoundJob,
    ) -> None:
        self._endpoint, self._trainer, self._record, self._give_up = endpoint, trainer, record, give_up
        self._settings, self._job = settings, job
        self._round, self._method, self._weights = job.number, job.method, job.weights
        self._work = {device: self._new_work(device) for device in sorted(job.plan.assignments)}
        self._events: asyncio.Queue[m.RoundEvent] = asyncio.Queue()
        self._with_server: set[str] = set()  # devices with a server half, once `_halves_ready`
        self._halves_ready = asyncio.Event()

    async def run(self) -> RoundResult:
        """Carry out the plan. Cancelling it cancels the devices' tasks."""
        job = self._job
        machine = m.RoundMachine(
            self._work,
            now_s(),
            deadline_s=self._settings.deadline_s,
            quorum=self._settings.quorum if job.quorum is None else job.quorum,
            liveness_s=max(self._settings.liveness_s, job.patience_s),
            enough=job.plan.enough,
            ceiling_s=self._settings.ceiling_s,
            ends=job.ends_s,
        )
        self._send_tasks()
        try:
            # While the downloads run: copying the server halves takes longer than planning.
            await self._open_halves()
            finish = await self._until_finished(machine)
        except BaseException:
            for device, work in self._work.items():
                if not work.out:
                    self._leave(m.Leave(device, "cancelled", "the run was interrupted"))
            raise
        return self._result(finish)

    async def _open_halves(self) -> None:
        start_ns = now_ns()
        self._with_server = await self._trainer.open(self._method, self._weights, self._job.plan.assignments)
        if devices := tuple(sorted(self._with_server)):
            self._record(HalfWork(start_ns, now_ns(), self._round, "make", devices, self._trainer.made))
        self._halves_ready.set()

    def _new_work(self, device: str) -> DeviceWork:
        assignment = self._job.plan.assignments[device]
        # With the time, ids are unique over resumed runs: a late update from before the resume does not fit this task.
        unique = f"{self._settings.run}/{self._round}/{device}/{unique_ns():x}"
        bounds = bounds_of(self._method, assignment, self._settings.samples[device])
        settings = self._settings
        costs = settings.costs(device, assignment)
        index, state = settings.indices.get(device, 1.0), settings.states.expected(device) or msgspec.UNSET
        task = Task(unique, settings.run, self._round, assignment, costs, index, state, settings.base.sha256)
        bounds, agent = msgspec.structs.replace(bounds, held=bool(costs)), settings.states.agent(device)
        return DeviceWork(task, bounds, settings.queued_uploads, agent)

    def _send_tasks(self) -> None:
        """Start every download. Devices that get the same tensors share one encoded body."""
        bodies: dict[tuple[tuple[str, int], ...], tuple[Weights, bytes | bytearray]] = {}
        for device, work in self._work.items():
            whole = work.tensors(self._method, self._weights)
            tensors = self._settings.base.to_send(device, work.agent, whole)
            key = tuple((name, id(value)) for name, value in tensors.items())
            if key not in bodies:  # with the tensors, for the number of one that is gone may be another's
                bodies[key] = tensors, encode_tensors(tensors, LOSSLESS)
            _, body = bodies[key]
            work.body, work.limits = len(body), self._settings.limits.get(device)
            self._spawn(device, self._dispatch(device, work, body))

    async def _until_finished(self, machine: m.RoundMachine) -> m.Finish:
        event: m.RoundEvent = m.Tick()
        while True:
            for effect in machine.handle(event, now_s()):
                if isinstance(effect, m.Finish):
                    return effect
                self._leave(effect)
            event = await self._next(machine.wakeup(now_s()))

    async def _next(self, wakeup: float | None) -> m.RoundEvent:
        timeout = None if wakeup is None else max(0.0, wakeup - now_s())
        try:
            async with asyncio.timeout(timeout):
                return await self._events.get()
        except TimeoutError:  # an event that came meanwhile goes first
            return m.Tick() if self._events.empty() else self._events.get_nowait()

    # ---- inputs ----

    def admit(self, peer: str, header: Header, size: int) -> None:
        """Refuse a transfer before its bytes come: one of no open task, and one that breaks its bounds. A device that
        breaks them is out of the round."""
        match header:
            case Upload(device, task) | Update(device, task) | Failure(device, task) if device == peer:
                work = self._work.get(device)
                if work is None or work.out or work.task.id != task:
                    raise TransferRefused(f"task {task} of {device} is over")
                if work.update is not None:
                    raise TransferRefused(f"task {task} of {device} has its update already")
            case _:
                raise TransferRefused(f"an orchestrator takes no {type(header).__name__} from {peer}")
        if why := transfer_fault(self._method, self._weights, work, header, size):
            self._put(m.Dropped(peer, "refused", why))
            raise TransferRefused(why)

    async def deliver(self, inbound: ReceivedTransfer) -> None:
        """A complete transfer. It is acknowledged when this returns, so waiting here makes the device wait."""
        work = self._work.get(inbound.peer)
        header = inbound.header
        if work is None or work.out or not isinstance(header, Upload | Update | Failure) or header.task != work.task.id:
            return
        self._put(m.Progressed(inbound.peer))
        match header:
            case Upload():
                if header.batch != work.uploads:  # transfers arrive in the order they were sent
                    why = f"it sent upload {header.batch}; {work.uploads} was the next"
                    self._put(m.Dropped(inbound.peer, "refused", why))
                    return
                await self._take_slot(work)
                if work.out:
                    return  # the device left while this upload waited
                self._wait_more(inbound.peer, work, 1)
                work.upload_bytes += inbound.bytes
                work.uploads += 1
                self._record(record := upload_record(self._round, inbound, header))
                self._spawn(inbound.peer, self._serve(inbound.peer, work, header, inbound, record.taken_ns))
            case Update():
                work.update, work.update_ns, work.update_first_ns = header, inbound.last_ns, inbound.first_ns
                work.update_bytes = inbound.bytes
                self._record(update_record(self._round, inbound, header, each_piece=self._settings.each_piece))
                self._spawn(inbound.peer, self._complete(inbound.peer, work, header, inbound))
            case Failure(device, _, why, diverged, trace):
                work.trace = printable(trace, MOST_TRACE, "\n")
                self._put(m.Dropped(device, "diverged" if diverged else "failed", printable(why, MOST_TEXT)))

    async def _take_slot(self, work: DeviceWork) -> None:
        """Wait until fewer uploads wait for the server half. This time is not counted as the link's."""
        start = now_s()
        await work.slots.acquire()
        work.held_s += now_s() - start

    def _wait_more(self, device: str, work: DeviceWork, more: int) -> None:
        """Add `more` to the uploads that wait for the device's server half."""
        before = work.pending
        work.pending += more
        if bool(before) != bool(work.pending):
            self._put(m.Held(device, bool(work.pending)))

    def progress(self, device: str) -> None:
        """The device or its link has made progress."""
        self._put(m.Progressed(device))

    def heard(self, device: str, moved: bool, task: str, phase: str) -> None:
        """A heartbeat. A device that waits for its server half counts as making progress."""
        work = self._work.get(device)
        if work is not None and (moved or (phase in ("blocked", "reply_wait", "upload_tail") and work.pending)):
            self._put(m.Progressed(device))

    def lost(self, device: str, why: str) -> None:
        """The device's work is lost: its agent died or restarted."""
        if (work := self._work.get(device)) is not None:
            work.gone = True
        self._put(m.Dropped(device, "lost", why))

    # ---- one device ----

    async def _dispatch(self, device: str, work: DeviceWork, body: bytes | bytearray) -> None:
        work.started_ns = now_ns()
        self._record(TaskSent(work.started_ns, self._round, device, work.task.id, len(body), work.state_bytes))
        try:
            sent = await self._endpoint.send(device, work.task, body)
        except TransferError as error:
            self._put(m.Dropped(device, "refused", str(error)))
            return
        work.sent, work.download_bytes = sent, sent.bytes
        work.download_s = (sent.done_ns - sent.first_ns) / 1e9
        self._record(TaskDelivered(sent.done_ns, self._round, device, work.task.id, sent.bytes))
        self._put(m.Delivered(device))

    async def _serve(
        self, device: str, work: DeviceWork, header: Upload, inbound: ReceivedTransfer, acked_ns: int
    ) -> None:
        """Pass one upload to its server half, and send the reply if there is one."""
        try:
            # Only one upload per device is decoded at a time, because decoded uploads are several times as large. The
            # lock is taken before any other wait, so that uploads get it in the order of batches: the server half needs
            # them in that order, and a later batch that held the lock would block the earlier one for ever.
            async with work.turn:
                await self._halves_ready.wait()
                most = work.bounds.upload_bytes
                tensors = await self._decode(inbound, most)
                work.arrivals.append(work.arrived(inbound, acked_ns, tensors))
                if why := misfit(work.bounds, header.batch, tensors):
                    raise RunError(f"upload {header.batch} cannot be used: {why}")
                step = await self._trainer.submit(device, header.batch, tensors)
            if step is None:
                return
            # A step of a group is recorded once, for its first device.
            if step.devices[0] == device:
                about = self._round, step.devices, header.batch, step.ready_ns, step.spent
                self._record(ServerStep(step.start_ns, step.end_ns, *about))
            self._put(m.Progressed(device))
            if step.replies:
                body = await asyncio.to_thread(encode_tensors, step.replies, work.task.assignment.codec)
                self._spawn(device, self._reply(device, Reply(work.task.id, header.batch), body))
        except EdgebedError as error:
            self._put(_unusable(device, error))
        finally:
            self._wait_more(device, work, -1)
            work.slots.release()

    async def _reply(self, device: str, reply: Reply, body: bytes | bytearray) -> None:
        with contextlib.suppress(TransferError):  # the task is over or the device is gone: that is handled elsewhere
            sent = await self._endpoint.send(device, reply, body)
            self._work[device].replies[reply.batch] = sent
            self._record(ReplyDelivered(sent.done_ns, sent.first_ns, self._round, device, reply.batch, sent.bytes))

    async def _complete(self, device: str, work: DeviceWork, header: Update, inbound: ReceivedTransfer) -> None:
        """Check the update, wait for the server half, and make the contribution."""
        try:
            most = most_bytes(self._method, self._weights, work, header.report)
            tensors = await self._decode(inbound, most)
            checked = (self._method, self._weights, work, header.report, tensors, self._settings.max_update_norm)
            if (bad := await asyncio.to_thread(update_fault, *checked)) is not None:
                self._put(m.Dropped(device, *bad))
                return
            self._put(m.Updated(device))
            # Transfers arrive in the order they were sent, so every upload of the task is here.
            server = await self._server_weights(device, work.uploads)
        except EdgebedError as error:
            self._put(_unusable(device, error))
            return
        assignment = work.task.assignment
        given = device, work.bounds.samples, assignment, work.weights, server, work.extra
        work.contribution = Contribution(*given, header.report, self._weights, work.origin)
        server_s = self._trainer.busy_s(device) if device in self._with_server else 0.0
        work.outcome = outcome(device, work, header, server_s)
        update = work.arrived(inbound, inbound.last_ns, tensors)
        found = work.lateness(update, self._settings.earned.get(device), self._settings.limits.get(device))
        self._record(done_record(self._round, work.outcome, work, found))
        if found is not None and found.early_s > max(LEAST_S, OUT_OF_STEP * work.outcome.seconds):
            what = f"it does not hold: seen {found.early_s:.2f} s before a device of its reference"
            self._record(Fault(now_ns(), device, what))
        self._put(m.Completed(device))

    async def _decode(self, inbound: ReceivedTransfer, most: int) -> Weights:
        """The tensors of a transfer's body, of at most `most` bytes."""
        return await asyncio.to_thread(decode_tensors, inbound.body, max_bytes=most)

    async def _server_weights(self, device: str, batches: int) -> Weights:
        await self._halves_ready.wait()
        if device not in self._with_server:
            return {}
        weights = await self._trainer.finish(device, batches)
        if (read := self._trainer.reading(device)) is not None:
            self._record(HalfWork(read.start_ns, read.end_ns, self._round, "read", read.devices, read.spent))
        return weights

    # ---- effects ----

    def _leave(self, effect: m.Leave) -> None:
        work = self._work[effect.device]
        if work.contribution is None or effect.how != "cancelled":
            about = effect.how, effect.why, work.trace, effect.limit_s
            self._record(DeviceOut(now_ns(), self._round, effect.device, *about))
        work.out, work.left = True, effect
        self._trainer.drop(effect.device)
        self._endpoint.control(effect.device, Cancel(work.task.id, effect.why))
        self._endpoint.forget(effect.device)
        for job in tuple(work.jobs):
            job.cancel()
        if effect.how == "failed":
            self._settings.states.forget(effect.device)
        if effect.how == "lost" and not work.gone:
            self._give_up(effect.device, effect.why)

    def _result(self, finish: m.Finish) -> RoundResult:
        merged = [self._work[device] for device in finish.merged]
        for each in merged if self._method.keeps_state else ():
            self._settings.states.took(each.task.assignment.device, each.task.id, each.agent)
        for work in self._work.values():
            work.out = True  # later transfers are refused
            how = "" if work.left is None else work.left.how
            self._settings.base.ended(work.task.assignment.device, how, delivered=work.sent is not None)
        return RoundResult(
            contributions=[w.contribution for w in merged if w.contribution is not None],
            outcomes=[w.outcome for w in merged if w.outcome is not None],
            why=finish.why,
            round=self._round,
            missing={device: work.left for device, work in self._work.items() if work.left is not None},
        )

    # ---- small ----

    def _put(self, event: m.RoundEvent) -> None:
        self._events.put_nowait(event)

    def _spawn(self, device: str, doing: object) -> None:
        work = self._work[device]
        job: asyncio.Task[None] = asyncio.ensure_future(doing)  # type: ignore[call-overload]
        work.jobs.add(job)
        job.add_done_callback(lambda done: self._ended(device, work, done))

    def _ended(self, device: str, work: DeviceWork, job: asyncio.Task[None]) -> None:
        """Record an unexpected error of a job; its device is out of the round."""
        work.jobs.discard(job)
        if not job.cancelled() and (error := job.exception()) is not None:
            what, work.trace = in_words(error), trace_of(error)
            self._record(Fault(now_ns(), device, what))
            self._put(m.Dropped(device, "failed", what))


def _unusable(device: str, error: EdgebedError) -> m.Dropped:
    """For an error in what a device sent, or in its server half."""
    return m.Dropped(device, "diverged" if isinstance(error, DivergedError) else "refused", str(error))
