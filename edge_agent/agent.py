"""The agent: two broker connections, the life cycle of its tasks, and the training thread.

The event loop does all I/O; one worker thread trains. Events go through the pure `AgentMachine`, and its effects are
carried out here.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec
import torch

from edge_agent import machine as m
from edge_agent.probe import Probes
from edge_agent.sensors.board import Board
from edge_agent.sensors.watch import BoardWatch
from edge_agent.settings import AgentSettings, presence
from edge_agent.silence import Silence
from edge_agent.software_throttle import SoftwareThrottle
from edge_agent.task_run import TaskRun, Tools
from edge_agent.telemetry import CpuUsage, ThreadCpu, Throttling
from edge_agent.training import DeviceTrainer
from edgebed.datasets.shard import Shard, read_shard
from edgebed.device.core import Result
from edgebed.device.phases import OWN_WORK, PhaseLog
from edgebed.errors import DivergedError, TransferError, in_words, trace_of
from edgebed.link.base import Link
from edgebed.link.endpoint import ReceivedTransfer, TransferEndpoint
from edgebed.pacing import Pacer
from edgebed.timeouts import timeout
from edgebed.wire.messages import (
    Cancel,
    Configure,
    Control,
    Failure,
    Header,
    PhasesSeen,
    Ping,
    Pong,
    Probe,
    Reply,
    Shutdown,
    Status,
    Task,
    Update,
)
from edgebed.wire.topics import ORCHESTRATOR

EVERY_ADDRESS = ("0.0.0.0", "::")
"""The orchestrator listens for probes on all its addresses; that of the broker is one that this device reaches."""


class Agent:
    """One device's agent, made while an event loop runs. `run` returns when the orchestrator sends Shutdown.

    Args:
        make_trainer: makes what trains the tasks.

    Attributes:
        endpoint, heartbeat_s: of the transfers to and from the orchestrator; seconds between heartbeats.
    """

    def __init__(
        self,
        settings: AgentSettings,
        incarnation: str,
        control: Link,
        data: Link,
        throttle: SoftwareThrottle,
        make_trainer: Callable[[Shard, PhaseLog], DeviceTrainer] = DeviceTrainer,
    ) -> None:
        self._settings, self._incarnation = settings, incarnation
        self._topics = settings.topics
        self._control, self._data = control, data
        self._throttling = Throttling()
        self.phases = PhaseLog(time.monotonic_ns, CpuUsage(time.process_time_ns, self._throttling.recent))
        self._shard = read_shard(settings.shard, torch.device(settings.accelerator))
        self._trainer = make_trainer(self._shard, self.phases)
        self._machine = m.AgentMachine()
        self.endpoint = TransferEndpoint(
            settings.device,
            self._topics,
            control,
            data,
            deliver=self._deliver,
            admit=self._admit,
            on_control=self._on_control,
            on_progress=lambda peer, transfer: self._advance(),
        )
        self.endpoint.silent = True  # until its first settings
        self._throttle, self._pacer = throttle, Pacer()
        self._threads, self._cpus, self.heartbeat_s, self._configured = 1, 0.0, 5.0, -1
        self._progress, self._quota_s = 0, 0.0  # the quota: CPU seconds in a period of it
        self._silence = Silence(settings.alone_s)
        self._thread_cpu = ThreadCpu()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="training")
        self._run: TaskRun | None = None
        self._bodies: dict[str, ReceivedTransfer] = {}
        self._probes = Probes(settings.device, throttle, self._pacer, self.phases)
        self._sensors = BoardWatch(Board()) if settings.board else None
        self._jobs: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()
        self._beat_now = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._tools = Tools(
            loop=self._loop,
            phases=self.phases,
            throttling=self._throttling,
            throttle=self._throttle,
            pacer=self._pacer,
            thread_cpu=self._thread_cpu,
            send=functools.partial(self.endpoint.send, ORCHESTRATOR),
            advance=self._advance,
        )

    async def run(self) -> None:
        """Join the fleet and serve until Shutdown. Raises LinkError if the broker cannot be reached at the start, or if
        nothing was received from an orchestrator for `alone_s` seconds."""
        self.endpoint.start()
        self._control.on_connect(self._announce)
        await self._control.open()
        await self._data.open()
        self._announce()
        beats, stop = asyncio.create_task(self._heartbeats()), asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait([beats, stop], return_when=asyncio.FIRST_COMPLETED)
            if beats.done():
                beats.result()
        finally:
            stop.cancel()
            beats.cancel()
            if self._sensors is not None:
                self._sensors.close()
            if self._run is not None:
                self._run.cancel()
            for job in self._jobs:
                job.cancel()
            self._control.publish(
                self._topics.state(self._settings.device),
                presence(self._settings, self._incarnation, False),
                retain=True,
            )
            await self.endpoint.close()
            await self._data.close()
            await self._control.close()
            await asyncio.to_thread(self._pool.shutdown, cancel_futures=True)

    # ---- what arrives ----

    def _admit(self, peer: str, header: Header, size: int) -> None:
        if isinstance(header, Task) and not self._machine.task:
            self.phases.enter("download", header.id)
            self._pacer.begin()

    async def _deliver(self, inbound: ReceivedTransfer) -> None:
        match inbound.header:
            case Task() as task:
                self._arrived(task, inbound)
            case Reply() as reply if self._run is not None and reply.task == self._run.task.id:
                self._run.answer(reply.batch, bytes(inbound.body))
            case _:
                pass  # a reply for a task that has ended

    def _arrived(self, task: Task, inbound: ReceivedTransfer) -> None:
        self._bodies[task.id] = inbound
        self._carry_out(self._machine.handle(m.TaskArrived(task)))
        next_ = self._machine.next_task  # a newer task replaces one that has not begun
        self._bodies = {name: body for name, body in self._bodies.items() if name == next_}

    def _on_control(self, peer: str, message: Control) -> None:
        """Until its first settings the agent sends nothing: it may be a second one with the name of this device."""
        self._silence.end()
        match message:
            case Configure():
                self._configure(message)
            case Shutdown(why, incarnation) if incarnation in ("", self._incarnation):
                self._end(why if incarnation else "")
            case Ping(seq, sent_ns, incarnation) if incarnation in ("", self._incarnation):
                self._notify(Pong(self._settings.device, seq, sent_ns, time.monotonic_ns()))
            case _ if not self.endpoint.silent:
                self._on_order(message)

    def _on_order(self, message: Control) -> None:
        match message:
            case Cancel(task, _):
                if self.phases.doing("download", task):
                    self.phases.enter("waiting", "")
                self._carry_out(self._machine.handle(m.CancelArrived(task)))
            case PhasesSeen(incarnation, upto) if incarnation == self._incarnation:
                self.phases.seen(upto)
            case Probe():
                self._spawn(self._probe(message))

    def _end(self, refused: str) -> None:
        """Stop. `refused`: why the orchestrator does not accept this agent."""
        if refused:
            print(f"edgebed-agent: {refused}", file=sys.stderr)
        self._stop.set()

    def _configure(self, wanted: Configure) -> None:
        if wanted.incarnation not in ("", self._incarnation):
            return
        self.endpoint.silent = False
        if wanted.seq > self._configured:
            self._configured = wanted.seq
            self._threads, self._cpus, self.heartbeat_s = wanted.threads, wanted.cpus, wanted.heartbeat_s
            self._quota_s = (wanted.ceiling or wanted.cpus) * wanted.period_s
            self._throttle.configure(wanted)
            self._pacer.set(
                wanted.cpus if wanted.paced else 0.0,
                wanted.period_s,
                by_reference=wanted.by_reference,
                share=wanted.share,
            )
        self._beat_now.set()

    # ---- effects ----

    def _carry_out(self, effects: list[m.Effect]) -> None:
        for effect in effects:
            match effect:
                case m.StartTraining(task):
                    self._train(task)
                case m.StopTraining():
                    if self._run is not None:
                        self._run.cancel()
                case m.SendUpdate():
                    assert self._run is not None
                    self._run.ending = self._spawn(self._send_update(self._run))
                case m.SendFailure(task_id, why):
                    assert self._run is not None
                    failure = Failure(self._settings.device, task_id, why, self._run.diverged, self._run.trace)
                    self._run.ending = self._spawn(self._send_end(failure, b"", task_id))
                case m.Rest():
                    self._give_up()
                    self.phases.enter("waiting", "")
                    self._beat_now.set()

    def _give_up(self) -> None:
        """End the current task. Everything for it has been sent, or is no longer wanted."""
        if self._run is not None:
            self._run.cancel()
            self._run = None

    def _train(self, task: Task) -> None:
        self._give_up()
        inbound = self._bodies.pop(task.id)
        self._run = run = TaskRun(task, inbound, self._tools, self._quota_s)
        future = self._pool.submit(run.work, self._trainer, self._threads, self._cpus)
        future.add_done_callback(lambda done: self._loop.call_soon_threadsafe(self._trained, run, done))

    def _trained(self, run: TaskRun, done: Future[Result]) -> None:
        self._thread_cpu.watch(None)
        error = done.exception()
        run.result, run.diverged = None if error else done.result(), isinstance(error, DivergedError)
        why, run.trace = ("", "") if error is None else (in_words(error), trace_of(error))
        self._carry_out(self._machine.handle(m.TrainingEnded(run.task.id, why)))

    async def _send_update(self, run: TaskRun) -> None:
        assert run.result is not None
        self.phases.enter("upload_tail")
        try:
            await run.uploads.drained()
        except TransferError as error:
            await self._send_end(Failure(self._settings.device, run.task.id, str(error)), b"", run.task.id)
            return
        await self._send_end(Update(self._settings.device, run.task.id, run.report()), run.result.body, run.task.id)

    async def _send_end(self, header: Update | Failure, body: bytes | bytearray, task: str) -> None:
        """Send the update or the failure of a task. A refusal means that it came too late, and is not an error."""
        if self._machine.task != task:
            return
        self.phases.enter("upload_tail")
        with contextlib.suppress(TransferError):
            await self.endpoint.send(ORCHESTRATOR, header, body)
        self._carry_out(self._machine.handle(m.Sent(task)))

    # ---- probes ----

    async def _probe(self, probe: Probe) -> None:
        if probe.host in EVERY_ADDRESS:
            probe = msgspec.structs.replace(probe, host=self._settings.host)
        result = await self._probes.answer(probe)
        if result is not None:
            self._notify(result)

    # ---- heartbeats ----

    def _announce(self) -> None:
        self._control.publish(
            self._topics.state(self._settings.device),
            presence(self._settings, self._incarnation, True, self._shard),
            retain=True,
        )
        self._beat_now.set()

    async def _heartbeats(self) -> None:
        """Send heartbeats. Never returns. Raises LinkError when no answer came for too long."""
        while True:
            before = time.monotonic()
            with contextlib.suppress(TimeoutError):
                async with timeout(self.heartbeat_s):
                    await self._beat_now.wait()
            self._beat_now.clear()
            self._silence.add(time.monotonic() - before, self.heartbeat_s)
            if self.phases.name in OWN_WORK and self._thread_cpu.advanced():  # waiting uses a little CPU, too
                self._advance()
            self._notify(self._status())

    def _status(self) -> Status:
        """The phases reach at least to `sent_ns`, wherever the quota stops the agent."""
        sent_ns = time.monotonic_ns()
        self.phases.split()
        first, phases = self.phases.pending()
        return Status(
            device=self._settings.device,
            incarnation=self._incarnation,
            configured=self._configured,
            task=self._machine.task,
            phase=self.phases.name,
            progress=self._progress,
            cpu_s=time.process_time(),
            sent_ns=sent_ns,
            phases=phases,
            first_phase=first,
            board=self._sensors.take() if self._sensors is not None else (),
        )

    # ---- helpers ----

    def _advance(self) -> None:
        self._progress += 1

    def _notify(self, message: Control) -> None:
        self.endpoint.control(ORCHESTRATOR, message)

    def _spawn(self, work: object) -> asyncio.Task[None]:
        job: asyncio.Task[None] = asyncio.ensure_future(work)  # type: ignore[call-overload]
        self._jobs.add(job)
        job.add_done_callback(self._job_ended)
        return job

    def _job_ended(self, job: asyncio.Task[None]) -> None:
        """After an unexpected error the device reports a failure: it must not fall silent during a task."""
        self._jobs.discard(job)
        if job.cancelled() or (error := job.exception()) is None:
            return
        self._loop.call_exception_handler({"message": "a job of the agent failed", "exception": error})
        if self._run is not None:
            self._run.trace = trace_of(error)
        self._carry_out(self._machine.handle(m.Broken(in_words(error))))
