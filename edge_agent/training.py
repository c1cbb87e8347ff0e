"""Drives a device half in the training thread: batches in, uploads out, every stretch of time given its name.

No sockets here: uploads and replies go through `TaskIO`, which the shell (`edge_agent.agent`) provides.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Protocol

import msgspec
import torch

from edge_agent.phases import PhaseLog
from edge_agent.requests import Requests
from edgebed.datasets.shard import Shard
from edgebed.errors import EdgebedError
from edgebed.methods.base import Batch, Outgoing, Trained, check_hold, find_half
from edgebed.methods.parts.local_training import Half, make_optimizer
from edgebed.models.staged import MODELS, StagedModel, Weights
from edgebed.models.width import narrow_model
from edgebed.wire.codecs import LOSSLESS, decode_tensors, encode_tensors
from edgebed.wire.messages import Assignment, Codec, Header, Optimizer, Task, Upload


class Cancelled(EdgebedError):
    """The orchestrator wants this task no longer."""


class TaskIO(Protocol):
    """What the training thread may ask of the I/O thread. Both calls block, and raise Cancelled when the task ends."""

    def upload(self, header: Header, body: bytes | bytearray) -> None:
        """Hand over an upload; blocks while the upload queue is full."""

    def reply(self, batch: int) -> bytes:
        """The body of the reply to `batch`."""

    def check(self) -> None:
        """Raises Cancelled when the task is no longer wanted."""

    def progress(self) -> None:
        """One batch more."""

    def wait(self, seconds: float) -> None:
        """Return after so long."""

    def pace(self) -> None:
        """Called after every batch: the software throttle, where there is one, waits here."""


class Result(msgspec.Struct):
    """What one task gave: the encoded update and what it cost."""

    body: bytes | bytearray
    samples: int
    batches: int
    loss: float
    notes: dict[str, float]
    compute_s: float
    compute_cpu_s: float
    encode_s: float
    encode_cpu_s: float


class Trainer:
    """Executes assignments on this device's shard. Keeps the model between tasks, for building it costs a weak device
    seconds; every task overwrites the weights of its half."""

    def __init__(self, shard: Shard, phases: PhaseLog) -> None:
        self._shard, self._phases = shard, phases
        self._built: tuple[bytes, StagedModel] | None = None

    def run(self, task: Task, body: bytes | memoryview, io: TaskIO, threads: int, cpus: float = 0.0) -> Result:
        """Train one task. Raises UsageError for an assignment this device cannot do, Cancelled when told to stop."""
        torch.set_num_threads(threads)
        assignment = msgspec.structs.replace(task.assignment, cpus=cpus, privacy=self._shard.privacy)  # its own choice
        self._phases.enter("decode", task.id)
        model = self._model(assignment)
        if assignment.keep:
            model = narrow_model(model, assignment.keep)
        model.load(decode_tensors(body))
        half = find_half(assignment.objective)
        clock, encoding = _Stopwatch(), _Stopwatch()
        batches = self._batches(assignment, io)
        generator = half(model, assignment, batches)
        trained = self._drive(generator, task, io, clock, encoding)
        self._phases.enter("encode")
        return Result(
            body=encode_tensors(trained.weights, LOSSLESS),
            samples=self._shard.samples,
            batches=trained.batches,
            loss=trained.loss,
            notes=trained.notes,
            compute_s=clock.wall_s - (batches.waited_s if isinstance(batches, Requests) else 0.0),
            compute_cpu_s=clock.cpu_s,
            encode_s=encoding.wall_s,
            encode_cpu_s=encoding.cpu_s,
        )

    def _drive(self, half: Half, task: Task, io: TaskIO, clock: _Stopwatch, encoding: _Stopwatch) -> Trained:
        reply: Weights | None = None
        batch = 0
        while True:
            self._phases.enter("compute")
            try:
                with clock:
                    out = half.send(reply)
            except StopIteration as stop:
                trained: Trained = stop.value
                return trained
            reply = self._exchange(out, task, batch, io, encoding)
            batch += 1

    def _exchange(self, out: Outgoing, task: Task, batch: int, io: TaskIO, encoding: _Stopwatch) -> Weights | None:
        """Send what the half yielded; the reply where it waits for one."""
        self._phases.enter("encode")
        with encoding:
            body = encode_tensors(out.tensors, task.assignment.codec)
        io.upload(Upload(task.assignment.device, task.id, batch, out.samples), body)
        if not out.wait:
            return None
        check_hold(task.assignment)
        serving = task.assignment.arrivals is not None
        if serving:
            io.progress()
            io.pace()
        self._phases.enter("request_wait" if serving else "reply_wait")
        answer = io.reply(batch)
        self._phases.enter("decode")
        return decode_tensors(answer)

    def _batches(self, assignment: Assignment, io: TaskIO) -> Iterable[Batch]:
        if assignment.arrivals is not None:
            return Requests(self._shard, assignment.arrivals, assignment.seed, self._phases, io)
        return self._schedule(assignment, io)

    def _schedule(self, assignment: Assignment, io: TaskIO) -> Iterator[Batch]:
        epochs = assignment.steps or assignment.epochs  # an epoch has one step at least
        how = (assignment.max_batches, assignment.seed, assignment.augment)
        batches = self._shard.batches(assignment.batch_size, epochs, *how)
        for batch in islice(batches, assignment.steps or None):
            io.check()
            yield batch
            io.progress()
            io.pace()

    def _model(self, assignment: Assignment) -> StagedModel:
        key = msgspec.msgpack.encode((assignment.model, assignment.input_shape, assignment.classes))
        if self._built is None or self._built[0] != key:
            model = MODELS.create(assignment.model, "assignment").build(assignment.input_shape, assignment.classes)
            self._built = (key, model)
        return self._built[1]


class _Stopwatch:
    """Adds up wall and CPU seconds of the training thread over `with` blocks."""

    def __init__(self) -> None:
        self.wall_s = self.cpu_s = 0.0

    def __enter__(self) -> None:
        self._wall, self._cpu = time.monotonic(), time.thread_time()

    def __exit__(self, *_: object) -> None:
        self.wall_s += time.monotonic() - self._wall
        self.cpu_s += time.thread_time() - self._cpu


def warm_up() -> None:
    """Train one step of a toy network, so that everything torch loads late is loaded before limits go on: under a
    quota of 0.1 CPU it would take a minute of the first round. Starts no thread, so a fork server may fork
    afterwards."""
    torch.set_num_threads(1)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
    )
    for kind in (Optimizer("adam"), Optimizer("sgd", momentum=0.9)):
        optimizer = make_optimizer(net.parameters(), kind)
        loss = torch.nn.functional.cross_entropy(net(torch.zeros(4, 3, 8, 8)), torch.zeros(4, dtype=torch.int64))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    decode_tensors(encode_tensors({"x": torch.zeros(2, 3, 4)}, Codec("uint8", zstd=True)))
