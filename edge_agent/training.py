"""Drives the device core in the training thread.

No sockets here: uploads and replies go through `TaskIO`, which `edge_agent.task_run` implements.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable
from functools import partial

import msgspec
import torch

from edge_agent.requests import Patience, Requests
from edgebed.accelerator import CPU, settle, wait_for
from edgebed.datasets.shard import VERSION, About, Shard
from edgebed.device.batches import Batches, ShardBatches
from edgebed.device.core import (
    AwaitReply,
    Body,
    Computed,
    CoreStep,
    Decoded,
    Encoded,
    Result,
    SendUpload,
    begin_half,
    complete_assignment,
    run_task,
)
from edgebed.device.kept import KeptStates
from edgebed.device.metrics import TaskMetrics
from edgebed.device.phases import PhaseLog
from edgebed.device.pieces import Kinds
from edgebed.errors import UsageError
from edgebed.methods.parts.local_training import Half
from edgebed.models.staged import MODELS, StagedModel, Weights
from edgebed.wire.codecs import encode_tensors
from edgebed.wire.messages import Assignment, Task, Upload
from edgebed.wire.settings import Codec, LearningTask, Optimizer


class TaskIO(Patience):
    """What the training thread asks of the event loop. `upload`, `reply`, `check` and `wait` raise Cancelled or
    TransferError when the task has ended. As it is here, nobody hears of the work: `warm_up`."""

    def __init__(self, metrics: TaskMetrics | None = None) -> None:
        self.metrics = metrics or TaskMetrics()

    def upload(self, header: Upload, body: bytes | bytearray) -> None:
        """Hand over an upload. Waits while the upload queue is full, and returns when that may be seen by others."""

    def reply(self, batch: int) -> bytes:
        """Wait for the body of the reply to upload `batch`, until its use may be seen by others."""
        return b""

    def done(self, kind: str, size: int) -> None:
        """A piece of work has ended (`edgebed.device.pieces`). Returns when the reference would have ended it."""


class DeviceTrainer:
    """Does tasks on this device's shard, where the shard's batches go: on the CPU or an accelerator. It keeps the model
    between tasks, because building one takes a slow device seconds. Every task overwrites the weights of its half, but
    for frozen ones that earlier tasks of the same base have brought. What halves keep (`KeptStates`) stays."""

    def __init__(self, shard: Shard, phases: PhaseLog) -> None:
        self._shard, self._phases = shard, phases
        settle(shard.accelerator)
        self._built: tuple[bytes, StagedModel] | None = None
        self._states = KeptStates()

    def run(self, task: Task, body: Body, io: TaskIO, threads: int, cpus: float = 0.0) -> Result:
        """Do one task. Raises UsageError for an assignment that this device cannot do, and Cancelled when the task is
        cancelled."""
        torch.set_num_threads(threads)
        assignment = complete_assignment(task.assignment, cpus, self._shard)
        kinds = Kinds()
        batches = self._batches(assignment, io, kinds)
        built = self._built
        begin = partial(self._begin, task.base or "")
        steps = run_task(task, assignment, body, begin, batches, self._phases, self._states)
        del body  # only the core holds it, and lets go of it when it has been decoded
        driver = _Driver(assignment, io, self._shard.accelerator)
        answer: bytes | None = None
        try:
            while True:
                with driver.stopwatch:
                    step = steps.send(answer)
                    for kind, size in _pieces(step, kinds, building=built is not self._built):
                        io.done(kind, size)
                    io.hold()
                answer = driver.carry_out(step)
                del step  # an upload's body: only the queue holds it while the half computes
        except StopIteration as stop:
            result: Result = stop.value
        finally:
            steps.close()
            if self._built is not None:  # its copy of the device state may be as large as the features of the shard
                self._built[1].given, self._built[1].kept = {}, {}
        if isinstance(batches, Requests):
            io.metrics.compute_s -= batches.waited_s
        return result

    def _batches(self, assignment: Assignment, io: TaskIO, kinds: Kinds) -> Batches:
        if assignment.arrivals is not None:
            return Requests(self._shard, assignment.arrivals, assignment.seed, self._phases, io)

        def after(samples: int) -> None:
            io.progress()
            io.pace()
            io.done(*kinds.ended(samples))

        return ShardBatches(self._shard, assignment, before=io.check, after=after)

    def _begin(self, base: str, assignment: Assignment, body: Body, batches: Batches, kept: Weights) -> Half:
        model = self._model(assignment, base)
        half = begin_half(model, assignment, body, batches, kept, keep=False)
        if missing := model.frozen & set(model.names_below(assignment.stages, head=False)) - model.loaded:
            raise UsageError(f"{len(missing)} frozen weights never came, the first {min(missing)!r}")
        return half

    def _model(self, assignment: Assignment, base: str) -> StagedModel:
        key = msgspec.msgpack.encode((assignment.model, assignment.learns, base))
        if self._built is None or self._built[0] != key:
            model = MODELS.create(assignment.model, "assignment").build(assignment.learns)
            self._built = (key, model.to(self._shard.accelerator))
        return self._built[1]


def _pieces(step: CoreStep, kinds: Kinds, *, building: bool) -> Iterable[tuple[str, int]]:
    """Kind and size of the piece that ended with a step. `building`: the device builds its model with this task."""
    match step:
        case Decoded(size, reply):
            yield "reply" if reply else "build" if building else "decode", size
        case Computed(drawn, upload):
            yield kinds.uploading(drawn) if upload else kinds.finished()
        case Encoded(raw, _, update):
            yield "update" if update else "encode", raw


class _Driver:
    """Carries out the steps of the core. The time of a step is that of the `send` that yielded it."""

    def __init__(self, assignment: Assignment, io: TaskIO, accelerator: torch.device) -> None:
        self._io, self._serving = io, assignment.arrivals is not None
        self.stopwatch = _Stopwatch(accelerator)

    def carry_out(self, step: CoreStep) -> bytes | None:
        """Returns the body of the reply that the core waits for."""
        metrics, spent = self._io.metrics, self.stopwatch
        match step:
            case Computed():
                metrics.compute_s += spent.wall_s
                metrics.compute_cpu_s += spent.cpu_s
            case Encoded(update=False):
                metrics.encode_s += spent.wall_s
                metrics.encode_cpu_s += spent.cpu_s
            case SendUpload(header, body, wait):
                self._io.upload(header, body)
                if wait and self._serving:  # else batches call these
                    self._io.progress()
                    self._io.pace()
            case AwaitReply(number):
                start = time.monotonic()
                answer = self._io.reply(number)
                metrics.reply_s += time.monotonic() - start
                return answer
        return None


class _Stopwatch:
    """Wall and CPU seconds of the training thread in the last `with` block, with the work that it gave to the
    accelerator."""

    wall_s = cpu_s = 0.0

    def __init__(self, accelerator: torch.device) -> None:
        self._accelerator = accelerator

    def __enter__(self) -> None:
        self._wall, self._cpu = time.monotonic(), time.thread_time()

    def __exit__(self, *_: object) -> None:
        wait_for(self._accelerator)
        self.wall_s = time.monotonic() - self._wall
        self.cpu_s = time.thread_time() - self._cpu


WARM_UP_MODEL: dict[str, object] = {"name": "resnet-tiny"}
WARM_UP_TASKS = (
    ("output", 8, ("weights",), Optimizer("sgd", momentum=0.9), Codec()),
    ("head", 4, ("features", "weights"), Optimizer("adam"), Codec("uint8", zstd=True)),
)
"""Objective, stages, uploads, optimizer and codec of the tasks of `warm_up`: a whole model, and a device half."""


def warm_up(accelerator: torch.device = CPU) -> None:
    """Do two small tasks as a device does them, so that everything they use is loaded before the limits are set. The
    first task of a process uses up to three times the CPU time of later ones, and the first method of a fleet would pay
    for it. Python's garbage collection does not look at what is loaded again: once in a while that would take 0.14 CPU
    seconds of the piece of work in hand. Starts no thread, so that a fork server may fork afterwards, and leaves
    torch's random state as it was."""
    torch.set_num_threads(1)
    state = torch.get_rng_state()
    x, y = torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.arange(4) % 2
    trainer = DeviceTrainer(
        Shard(x, y, About(VERSION, (0.5,), (0.5,), 2), "", accelerator), PhaseLog(time.monotonic_ns)
    )
    model = MODELS.create(WARM_UP_MODEL).build(LearningTask((1, 8, 8), 2))
    for objective, stages, uploads, optimizer, codec in WARM_UP_TASKS:
        assignment = Assignment(
            "warm-up", WARM_UP_MODEL, 2, (1, 8, 8), stages, objective,
            uploads=uploads, batch_size=2, optimizer=optimizer, codec=codec,
        )  # fmt: skip
        weights = encode_tensors(model.weights(), Codec())
        trainer.run(Task("warm-up", "", 0, assignment), weights, TaskIO(), threads=1)
    torch.set_rng_state(state)
    gc.collect()
    gc.freeze()
