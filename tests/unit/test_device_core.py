"""The device core, driven by hand: its steps, its phases, replies, cancellation and errors."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch

from edgebed.device.batches import Batches, ShardBatches
from edgebed.device.core import (
    AwaitReply,
    Begin,
    Body,
    Cancelled,
    Computed,
    CoreStep,
    CoreSteps,
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
from edgebed.device.uploads import UploadAccount
from edgebed.errors import RunError, TransferError, TransferRefused, UsageError
from edgebed.methods.base import Outgoing, Trained, find_half
from edgebed.methods.parts.local_training import Half
from edgebed.models.costs import size_bytes
from edgebed.models.staged import Weights
from edgebed.wire.codecs import decode_tensors, encode_tensors
from edgebed.wire.messages import Assignment, Task, Upload
from edgebed.wire.settings import Codec, Optimizer
from orchestrator.testing.rounds import CLASSES, SHAPE, as_shard, shard, small_model

HEAD: dict[str, Any] = {"objective": "head", "stages": 2, "uploads": ("features", "weights")}
WHOLE: dict[str, Any] = {"objective": "output", "stages": 4, "uploads": ("weights",)}
SERVER: dict[str, Any] = {"objective": "server", "stages": 2, "uploads": ("features", "weights")}


class Device:
    """A device in the hands of a test. Its clock counts the readings."""

    def __init__(self, **wanted: Any) -> None:
        self.shard = as_shard(shard("a", 10))
        self.log = PhaseLog(iter(range(10**6)).__next__)
        given = Assignment(
            "a", {}, CLASSES, SHAPE, batch_size=4, optimizer=Optimizer("sgd", 0.05), codec=Codec("float16"), **wanted
        )
        self.task = Task("task", "run", 0, given)
        self.assignment = complete_assignment(given, 0.5, self.shard)
        self.batches = ShardBatches(self.shard, self.assignment)
        self.states = KeptStates()

    def start(self, begin: Begin | None = None, body: Body = b"") -> CoreSteps:
        return run_task(self.task, self.assignment, body, begin or self._begin, self.batches, self.log, self.states)

    def body(self) -> bytes | bytearray:
        model = small_model(seed=3)
        head = self.assignment.objective == "head"
        names = model.names_below(self.assignment.stages, head=head)
        return encode_tensors({name: model.weights()[name] for name in names}, Codec())

    def _begin(self, assignment: Assignment, body: Body, batches: Batches, kept: Weights) -> Half:
        return begin_half(small_model(), assignment, self.body(), batches, kept, keep=False)

    def phases(self) -> list[str]:
        return [phase.name for phase in self.log.take()]


def drive(steps: CoreSteps, reply: Callable[[int], bytes | bytearray] | None = None) -> tuple[list[CoreStep], Result]:
    taken: list[CoreStep] = []
    answer: bytes | bytearray | None = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as stop:
            return taken, stop.value
        taken.append(step)
        answer = reply(step.number) if reply is not None and isinstance(step, AwaitReply) else None


def test_a_task_with_uploads_step_by_step() -> None:
    device = Device(**HEAD)
    taken, result = drive(device.start(body=b"12345"))
    kinds = [Computed, Encoded, SendUpload]
    assert [type(step) for step in taken] == [Decoded, *kinds, *kinds, *kinds, Computed, Encoded]
    assert taken[0] == Decoded(5)
    assert [(step.drawn, step.upload) for step in taken if isinstance(step, Computed)] == [
        ((4,), True),
        ((4,), True),
        ((2,), True),
        ((), False),
    ]
    uploads = [step for step in taken if isinstance(step, SendUpload)]
    assert [step.header for step in uploads] == [Upload("a", "task", n, s) for n, s in enumerate((4, 4, 2))]
    sizes = [step.raw_bytes for step in taken if isinstance(step, Encoded) and not step.update]
    assert sizes == [size_bytes(decode_tensors(step.body)) for step in uploads]
    assert [step.codec for step in taken if isinstance(step, Encoded)] == [Codec("float16")] * 3 + [Codec()]
    assert device.phases() == ["waiting", "decode", *["compute", "encode"] * 4]
    assert (result.samples, result.batches) == (10, 3)


def test_it_is_the_half_that_trains() -> None:
    """The update is that of the half called directly on the same batches, to the bit."""
    device = Device(**WHOLE, epochs=2)
    taken, result = drive(device.start())
    model = small_model(seed=3)
    half = find_half("output")(model, device.assignment, ShardBatches(device.shard, device.assignment))
    with pytest.raises(StopIteration) as stop:
        next(half)
    trained: Trained = stop.value.value
    update = decode_tensors(result.body)
    assert update.keys() == trained.weights.keys()
    assert all(torch.equal(value, trained.weights[name]) for name, value in update.items())
    assert (result.loss, result.batches) == (trained.loss, trained.batches)
    assert taken[1] == Computed((4, 4, 2, 4, 4, 2), upload=False)


def test_replies_reach_the_half_by_number() -> None:
    device = Device(**SERVER)
    shape = small_model().feature_shape(2)
    asked: list[int] = []

    def reply(number: int) -> bytes | bytearray:
        asked.append(number)
        return encode_tensors({"gradient": torch.zeros((4, 4, 2)[number], *shape)}, Codec())

    taken, _ = drive(device.start(), reply)
    assert asked == [0, 1, 2]
    assert [type(step) for step in taken[1:6]] == [Computed, Encoded, SendUpload, AwaitReply, Decoded]
    assert taken[5] == Decoded(len(reply(0)), reply=True)
    assert device.phases()[2:6] == ["compute", "encode", "reply_wait", "decode"]


def test_a_reply_that_does_not_fit_is_an_error_of_the_half() -> None:
    steps = Device(**SERVER).start()
    with pytest.raises(RunError, match="were answered with"):
        drive(steps, lambda number: encode_tensors({"gradient": torch.zeros(1)}, Codec()))


def test_uploads_that_are_held_back_cannot_be_answered() -> None:
    with pytest.raises(UsageError, match="to keep its uploads"):
        drive(Device(**SERVER, hold=True).start())


class Watched:
    """A half that uploads twice and waits for the second reply; remembers that it was closed."""

    def __init__(self) -> None:
        self.begun = self.closed = False

    def begin(self, assignment: Assignment, body: Body, batches: Batches, kept: Weights) -> Half:
        return self._half()

    def _half(self) -> Half:
        self.begun = True
        try:
            yield Outgoing({"x": torch.zeros(2)}, samples=2)
            reply = yield Outgoing({"x": torch.ones(3)}, samples=3, wait=True)
            assert reply is not None
            return Trained(reply, 0.5, 2, {"n": 1.0})
        finally:
            self.closed = True


@pytest.mark.parametrize("after", range(1, 12))
def test_a_task_can_be_cancelled_after_every_step(after: int) -> None:
    watched, device = Watched(), Device(**SERVER)
    steps = device.start(watched.begin)
    answer: bytes | bytearray | None = None
    for _ in range(after):
        step = steps.send(answer)
        answer = encode_tensors({"y": torch.ones(1)}, Codec()) if isinstance(step, AwaitReply) else None
    if after == 11:
        assert isinstance(step, Encoded)
        assert step.update
    steps.close()
    assert watched.closed == watched.begun == (after > 1)
    with pytest.raises(StopIteration):
        next(steps)


def test_a_half_that_raises_ends_the_task_unchanged_and_in_its_phase() -> None:
    error = KeyError("a bug")

    def begin(assignment: Assignment, body: Body, batches: Batches, kept: Weights) -> Half:
        yield from ()
        raise error

    device = Device(**HEAD)
    with pytest.raises(KeyError) as caught:
        drive(device.start(begin))
    assert caught.value is error
    assert device.log.name == "compute"


def test_batches_may_end_the_task() -> None:
    device = Device(**WHOLE)
    seen: list[str] = []

    def before() -> None:
        seen.append("before")
        if seen.count("before") == 2:
            raise Cancelled("no longer wanted")

    device.batches = ShardBatches(
        device.shard, device.assignment, before, lambda samples: seen.append(f"after {samples}")
    )
    with pytest.raises(Cancelled):
        drive(device.start())
    assert seen == ["before", "after 4", "before"]
    assert device.batches.drawn == [4]


def test_steps_limit_the_batches_over_as_many_epochs_as_that_takes() -> None:
    assert drive(Device(**WHOLE, steps=4).start())[0][1] == Computed((4, 4, 2, 4), upload=False)
    assert drive(Device(**WHOLE, epochs=2, max_batches=1).start())[0][1] == Computed((4, 4), upload=False)


def test_nothing_encoded_is_kept_while_the_half_computes() -> None:
    """Bodies are large: the task's is let go of when it is decoded, an upload's when it is handed over."""
    device = Device(**HEAD)
    body = memoryview(device.body())
    gone = weakref.ref(body)
    steps = device.start(body=body)
    del body
    steps.send(None)
    assert gone() is None
    step = next(each for each in steps if isinstance(each, SendUpload))
    upload = step.body
    del step
    steps.send(None)
    assert sys.getrefcount(upload) == 2  # ours, and the argument of this call


# ---- uploads and report ----


def account(hold: bool = False) -> tuple[UploadAccount, TaskMetrics, PhaseLog, list[float]]:
    metrics, phases, now = TaskMetrics(100, 0.5), PhaseLog(lambda: 0), [0.0]
    return UploadAccount(metrics, phases, hold, lambda: now[0]), metrics, phases, now


def test_overlapping_uploads_count_their_seconds_once() -> None:
    uploads, metrics, _, now = account()
    first, second = uploads.sending(), uploads.sending()
    first.__enter__()
    now[0] = 1.0
    second.__enter__()
    now[0] = 3.0
    first.__exit__(None, None, None)
    uploads.sent(70)
    now[0] = 4.0
    second.__exit__(None, None, None)
    uploads.sent(30)
    with uploads.sending():
        now[0] = 4.5
    assert (metrics.upload_bytes, metrics.upload_s) == (100, 4.5)


def test_the_first_error_of_an_upload_is_kept() -> None:
    uploads, _, _, _ = account()
    uploads.check()
    for why in ("the round is over", "later"):
        with uploads.sending():
            raise TransferRefused(why)
    with pytest.raises(TransferError, match="an upload could not be delivered: the round is over"):
        uploads.check()


def test_an_upload_of_a_cancelled_task_cancels_it() -> None:
    uploads, _, _, _ = account()
    with uploads.sending():
        raise Cancelled("the task was cancelled")
    with pytest.raises(Cancelled):
        uploads.check()


def test_a_full_queue_is_the_phase_blocked() -> None:
    uploads, metrics, phases, now = account()
    phases.enter("encode")
    with contextlib.suppress(Cancelled), uploads.blocked():
        assert phases.name == "blocked"
        now[0] = 2.0
        raise Cancelled("while it waited")
    assert (phases.name, metrics.blocked_s) == ("encode", 2.0)


@pytest.mark.parametrize("hold", [False, True])
def test_uploads_are_held_back_where_the_task_says_so(hold: bool) -> None:
    uploads, _, _, _ = account(hold)
    assert [uploads.keep(Upload("a", "t", n, 1), b"x") for n in range(2)] == [hold] * 2
    assert [header.batch for header, _ in uploads.held] == ([0, 1] if hold else [])


def test_the_report_holds_what_was_measured() -> None:
    _, metrics, _, _ = account()
    metrics.compute_s, metrics.encode_cpu_s, metrics.upload_bytes = 3.0, 0.25, 77
    report = metrics.report(Result(b"", 10, 3, 0.5, {"n": 1.0}), throttled_s=1.0, memory_mib=64.0)
    told = msgspec.structs.asdict(report)
    assert {name: value for name, value in told.items() if value} == {
        "samples": 10,
        "batches": 3,
        "loss": 0.5,
        "notes": {"n": 1.0},
        "compute_s": 3.0,
        "encode_cpu_s": 0.25,
        "download_bytes": 100,
        "download_s": 0.5,
        "upload_bytes": 77,
        "throttled_s": 1.0,
        "memory_mib": 64.0,
    }
