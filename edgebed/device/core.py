"""What a device does with a task, from the received bytes to the encoded update: one generator of steps. Pure.

`run_task` enters the phases, draws the batches, runs the device half and encodes what goes up. It yields a step for
everything that takes time or needs the link. Its driver lets the time of the step pass and resumes it. The agent's
driver (`edge_agent.training`) runs in the training thread; the time has passed already, and the driver waits only for
the upload queue and for replies. The simulator's driver (`orchestrator.simulation.task_executor`) lets virtual time
pass. The driver also measures the seconds (`metrics.TaskMetrics`) and looks for cancellation.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator

import msgspec
import torch

from edgebed.datasets.shard import Shard
from edgebed.device.batches import Batches
from edgebed.device.kept import KeptStates
from edgebed.device.phases import PhaseLog
from edgebed.errors import EdgebedError, UsageError
from edgebed.methods.base import Outgoing, Trained, find_half
from edgebed.methods.parts.local_training import Half
from edgebed.models.costs import size_bytes
from edgebed.models.staged import EXTRA, StagedModel, Weights, with_prefix
from edgebed.models.width import narrow_model
from edgebed.wire.codecs import LOSSLESS, decode_tensors, encode_tensors
from edgebed.wire.messages import Assignment, Task, Upload
from edgebed.wire.settings import Codec

Body = bytes | bytearray | memoryview
"""Encoded tensors."""

Begin = Callable[[Assignment, Body, Batches, Weights], Half]
"""Starts the device half of an assignment with the weights of a task's body, and what the device has kept. The work may
be put off to the first `send`."""


class Cancelled(EdgebedError):
    """The orchestrator no longer wants this task."""


class Decoded(msgspec.Struct, frozen=True):
    """A body of `size` bytes was decoded: that of the task, or of a reply. Phase `decode`."""

    size: int
    reply: bool = False


class Computed(msgspec.Struct, frozen=True):
    """The half ran until its next upload (`upload`) or to its end, and took batches of the sizes `drawn`. Phase
    `compute`."""

    drawn: tuple[int, ...]
    upload: bool


class Encoded(msgspec.Struct, frozen=True):
    """Tensors of `raw_bytes` bytes were encoded: an upload, or the update. Phase `encode`."""

    raw_bytes: int
    codec: Codec
    update: bool = False


class SendUpload(msgspec.Struct, frozen=True):
    """This upload is ready. `wait`: the half waits for the reply to it. Phase `encode`; the driver enters `blocked`
    while its queue is full."""

    header: Upload
    body: bytes | bytearray
    wait: bool


class AwaitReply(msgspec.Struct, frozen=True):
    """Resume with the body of the reply to upload `number`. Phase `reply_wait`, or `request_wait` while serving."""

    number: int


CoreStep = Decoded | Computed | Encoded | SendUpload | AwaitReply


class Result(msgspec.Struct):
    """What a task gave. `body` is the encoded update; `samples` are those of the shard."""

    body: bytes | bytearray
    samples: int
    batches: int
    loss: float
    notes: dict[str, float]


CoreSteps = Generator[CoreStep, Body | None, Result]


def complete_assignment(assignment: Assignment, cpus: float, shard: Shard) -> Assignment:
    """The assignment with what the device itself knows: its quota in CPUs, and what it does to its features."""
    return msgspec.structs.replace(assignment, cpus=cpus, privacy=shard.privacy)


def begin_half(
    model: StagedModel, assignment: Assignment, body: Body, batches: Batches, kept: Weights, *, keep: bool
) -> Half:
    """The half that the assignment names, with the weights of `body`.

    Args:
        kept: the device state, by names with `KEPT`; {} where the task brings it.
        keep: leave `model` as it is and train a copy. A narrower model is always a copy.

    Raises:
        PluginError: no half is registered for the objective.
    """
    if assignment.keep:
        model = narrow_model(model, assignment.keep)
    elif keep:
        model = copy.deepcopy(model)
    model.load({**decode_tensors(body), **kept})
    return drawing_apart(find_half(assignment.objective)(model, assignment, batches), assignment.seed)


def drawing_apart(half: Half, seed: int) -> Half:
    """The half with random numbers of its own, such as those of dropout: they follow from the seed, whatever else this
    process draws meanwhile."""
    state, reply = torch.Generator().manual_seed(seed).get_state(), None
    try:
        while True:
            outside = torch.get_rng_state()
            torch.set_rng_state(state)
            try:
                out = half.send(reply)
            except StopIteration as stop:
                trained: Trained = stop.value
                return trained
            finally:
                state = torch.get_rng_state()
                torch.set_rng_state(outside)
            reply = yield out
    finally:
        half.close()


def run_task(
    task: Task,
    assignment: Assignment,
    body: Body,
    begin: Begin,
    batches: Batches,
    phases: PhaseLog,
    states: KeptStates,
) -> CoreSteps:
    """Do a task. Every `AwaitReply` must be resumed with the reply's body, every other step with None.

    Errors of the half pass through unchanged.

    Args:
        assignment: as `complete_assignment` gives it.
        body: the encoded weights. The core lets go of it when it has been decoded.
        phases: the device's log. The core enters each phase before the work of it begins.
        states: the device's, of all runs.
    """
    phases.enter("decode", task.id)
    size = len(body)
    half = begin(assignment, body, batches, states.begin(task.run, task.state or ""))
    del body
    yield Decoded(size)
    number, reply = 0, None
    while True:
        phases.enter("compute")
        try:
            out = half.send(reply)
        except StopIteration as stop:
            trained: Trained = stop.value
            break
        yield Computed(_drawn(batches), upload=True)
        reply = yield from _exchange(out, Upload(assignment.device, task.id, number, out.samples), assignment, phases)
        number += 1
    yield Computed(_drawn(batches), upload=False)
    phases.enter("encode")
    tensors = {**trained.weights, **with_prefix(trained.extra, EXTRA)}
    update = encode_tensors(tensors, LOSSLESS)
    yield Encoded(size_bytes(tensors), LOSSLESS, update=True)
    states.keep(task.run, task.id, trained.state)
    return Result(update, batches.samples, trained.batches, trained.loss, trained.notes)


def _exchange(
    out: Outgoing, header: Upload, assignment: Assignment, phases: PhaseLog
) -> Generator[CoreStep, Body | None, Weights | None]:
    """Encode and send what the half yielded. Returns the reply, if the half waits for one.

    A function of its own, so that nothing here refers to the encoded upload while the half computes.
    """
    phases.enter("encode")
    body = encode_tensors(out.tensors, assignment.codec)
    yield Encoded(size_bytes(out.tensors), assignment.codec)
    yield SendUpload(header, body, out.wait)
    del body
    if not out.wait:
        return None
    _check_hold(assignment)
    phases.enter("reply_wait" if assignment.arrivals is None else "request_wait")
    answer = yield AwaitReply(header.batch)
    assert answer is not None
    phases.enter("decode")
    reply = decode_tensors(answer)
    yield Decoded(len(answer), reply=True)
    return reply


def _check_hold(assignment: Assignment) -> None:
    """Of a half that waits for the reply to an upload. Raises UsageError where that upload is held back."""
    if assignment.hold:
        raise UsageError(
            f"device {assignment.device!r} is to keep its uploads until it has computed, and to wait for their replies",
            hint=f"do not set `hold` with the objective {assignment.objective!r}",
        )


def _drawn(batches: Batches) -> tuple[int, ...]:
    """Sizes of the batches taken since the last call."""
    drawn = tuple(batches.drawn)
    batches.drawn.clear()
    return drawn
