"""Runs the server halves of a round. Each half uses its uploads in a fixed order.

All bookkeeping is in the event loop. Only `step` and `weights` of a half run elsewhere, one at a time per half: on
worker threads of this process (`ServerTrainer`) or in the trainer's process (`remote.RemoteTrainer`). So a half sees
the same uploads in the same order, whatever the order of arrival, and its weights are equal to the bit.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
import torch

from edgebed.accelerator import settle, wait_for
from edgebed.device.pieces import JOINED, STEP
from edgebed.errors import DivergedError, EdgebedError, RunError
from edgebed.methods.base import Method, Replies, ServerHalf
from edgebed.methods.parts.aggregation import not_finite, unfit
from edgebed.methods.parts.shared_half import LOWER
from edgebed.models.staged import Weights
from edgebed.wire.messages import Assignment
from orchestrator.clock import now_ns
from orchestrator.records.host_records import Spent

NICENESS = 10

Step = tuple[Replies, int, int, Spent | None]
"""Replies by device, start and end in nanoseconds of the run's clock, and what a paced server spent on it."""


class StepResult(msgspec.Struct, frozen=True):
    """One step of a server half. Times are monotonic nanoseconds; `replies` are this device's tensors, often none.
    `ready_ns`: when the half had all that it needed for the step."""

    start_ns: int
    end_ns: int
    devices: tuple[str, ...]
    batch: int
    replies: Weights
    ready_ns: int = 0
    spent: Spent | None = None


class Reading(msgspec.Struct, frozen=True):
    """The weights of a half were read for these devices, between two moments in nanoseconds of the run's clock."""

    start_ns: int
    end_ns: int
    devices: tuple[str, ...]
    spent: Spent | None = None


class HalfTrainer(ABC):
    """The server halves of one round at a time. Used from one event loop. Where the halves are, a derived class says.

    `submit` holds the tensors until their step is done, so the caller must limit how many uploads wait. `made`: what a
    paced server spent on making the halves of the round.
    """

    made: Spent | None = None

    def __init__(self) -> None:
        self._queues: dict[str, _HalfQueue] = {}

    @abstractmethod
    async def make_halves(
        self, method: Method, weights: Weights, assignments: Mapping[str, Assignment]
    ) -> list[ServerHalf]:
        """The halves of a round, or what stands for them here."""

    @abstractmethod
    async def run_step(self, half: ServerHalf, uploads: Mapping[str, Weights]) -> Step:
        """Run one step of a half."""

    @abstractmethod
    async def read_weights(self, half: ServerHalf) -> tuple[Weights, Spent | None]:
        """The weights of a half that has made all its steps, and what a paced server spent on reading them."""

    async def open(self, method: Method, weights: Weights, assignments: Mapping[str, Assignment]) -> set[str]:
        """Make the server halves of a round, and start it. Returns the devices that have a half."""
        halves = await self.make_halves(method, weights, assignments)
        self.begin(halves)
        return {device for half in halves for device in half.devices}

    def begin(self, halves: Iterable[ServerHalf]) -> None:
        """Start a round. Uploads that still wait from the last round end without a result."""
        for queue in self._queues.values():
            queue.end()
        queues = [_HalfQueue(half, self) for half in halves]
        self._queues = {device: queue for queue in queues for device in queue.half.devices}

    async def submit(self, device: str, batch: int, tensors: Weights) -> StepResult | None:
        """Submit upload `batch` (0, 1, …) of `device`. Returns when the step that used it is done.

        Returns None if the upload is not used: the device is unknown or dropped, the batch was submitted before, or the
        round is over. An early upload waits for the batches before it.

        Raises:
            DivergedError: the half of this device has a loss or weight that is not finite.
            RunError: the upload does not fit the half.
        """
        queue = self._queues.get(device)
        return await queue.submit(device, batch, tensors) if queue is not None else None

    def drop(self, device: str) -> None:
        """Remove a lost device: its waiting uploads are discarded, and its group continues without it."""
        queue = self._queues.pop(device, None)
        if queue is not None:
            queue.drop(device)

    async def finish(self, device: str, batches: int) -> Weights:
        """Weights of the device's half after all `batches` of its uploads (and its group's) are used; {} without half.

        Raises like `submit`.
        """
        queue = self._queues.get(device)
        return await queue.finish(device, batches) if queue is not None else {}

    def busy_s(self, device: str) -> float:
        """Seconds that its half has trained in this round."""
        queue = self._queues.get(device)
        return queue.busy_ns / 1e9 if queue is not None else 0.0

    def reading(self, device: str) -> Reading | None:
        """When the weights of the device's half were read, once they have been: for the first device that asks."""
        queue = self._queues.get(device)
        return queue.take_reading() if queue is not None else None

    async def close(self) -> None:
        """End the round."""
        self.begin([])


class ServerTrainer(HalfTrainer):
    """Halves on worker threads of this process.

    Args:
        accelerator: where the halves train. On cuda, cuDNN uses its deterministic algorithms in this process.
        slots: number of halves that train at the same time.
    """

    def __init__(self, accelerator: torch.device, slots: int) -> None:
        super().__init__()
        self.accelerator, self.slots = accelerator, slots
        settle(accelerator)
        self._pool = ThreadPoolExecutor(slots, thread_name_prefix="server-half", initializer=settle_worker)

    async def make_halves(
        self, method: Method, weights: Weights, assignments: Mapping[str, Assignment]
    ) -> list[ServerHalf]:
        return await asyncio.to_thread(method.server_halves, weights, assignments, self.accelerator)

    async def run_step(self, half: ServerHalf, uploads: Mapping[str, Weights]) -> Step:
        loop = asyncio.get_running_loop()
        return *await loop.run_in_executor(self._pool, timed_step, half, uploads, self.accelerator), None

    async def read_weights(self, half: ServerHalf) -> tuple[Weights, Spent | None]:
        return await asyncio.get_running_loop().run_in_executor(self._pool, half.weights), None

    async def close(self) -> None:
        """End the round and the threads. Waits for steps that are running."""
        await super().close()
        await asyncio.to_thread(self._pool.shutdown, cancel_futures=True)


def timed_step(half: ServerHalf, uploads: Mapping[str, Weights], accelerator: torch.device) -> tuple[Replies, int, int]:
    """One step of a half: its replies, and start and end in monotonic nanoseconds."""
    start_ns = time.monotonic_ns()
    replies = half.step(uploads)
    wait_for(accelerator)
    return replies, start_ns, time.monotonic_ns()


def step_pieces(kind: str, worked: Sequence[tuple[str, int]]) -> list[tuple[str, str, int]]:
    """The pieces of a step: device, kind and size of each. Its first batch bears what a step takes however many batches
    it trains on; each further one has a kind of its own.

    Args:
        kind: `step`, or `first step` of the half.
        worked: as `ServerHalf.worked`.
    """
    return [(device, kind.replace(STEP, JOINED) if n else kind, size) for n, (device, size) in enumerate(worked)]


def settle_worker() -> None:
    """Set up a worker, once: one torch thread, and a low priority. On a host that the fleet uses fully, the server must
    become slower when CPU time is short, and not the devices, whose quotas are measured."""
    torch.set_num_threads(1)
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


class _Waiting(msgspec.Struct):
    """An upload that waits for its step."""

    batch: int
    tensors: Weights
    done: asyncio.Future[StepResult | None]

    def settle(self, result: StepResult | EdgebedError | None) -> None:
        if self.done.done():
            return  # the caller was cancelled
        if isinstance(result, EdgebedError):
            self.done.set_exception(result)
        else:
            self.done.set_result(result)


class _Seat(msgspec.Struct):
    """One device of a half: its uploads by batch, the next batch to use, and the number of batches once it is known."""

    uploads: dict[int, _Waiting] = {}
    next: int = 0
    total: int | None = None

    @property
    def complete(self) -> bool:
        return self.total is not None and self.next >= self.total

    def take(self) -> _Waiting:
        waiting = self.uploads.pop(self.next)
        self.next += 1
        return waiting

    def release(self, result: EdgebedError | None = None) -> None:
        """Answer every waiting upload, with None or with the error."""
        for waiting in self.uploads.values():
            waiting.settle(result)
        self.uploads.clear()


class _HalfQueue:
    """One server half: its devices' uploads in order, and at most one running step."""

    def __init__(self, half: ServerHalf, trainer: HalfTrainer) -> None:
        self.half, self.busy_ns, self._trainer = half, 0, trainer
        self._seats = {device: _Seat() for device in half.devices}
        self._errors: dict[str, EdgebedError] = {}
        self._running: asyncio.Task[None] | None = None
        self._ready_ns = 0  # of the step that runs
        self._weights: asyncio.Task[Weights] | None = None
        self._reading: Reading | None = None
        self._ended = asyncio.Event()  # every device is complete, dropped or failed

    # ---- inputs ----

    async def submit(self, device: str, batch: int, tensors: Weights) -> StepResult | None:
        # Checked before it is used in a step, so that a bad upload fails its device only and not the group.
        why = await asyncio.to_thread(not_finite, tensors)
        seat = self._seats.get(device)
        if why and seat is not None:
            text = f"training diverged: in upload {batch} of device {device!r} {why}"
            self._refuse(device, DivergedError(text, hint=LOWER))
        if device in self._errors:
            raise self._errors[device]
        if seat is None or seat.complete or batch < seat.next or batch in seat.uploads:
            return None
        waiting = _Waiting(batch, tensors, asyncio.get_running_loop().create_future())
        seat.uploads[batch] = waiting
        self._advance()
        return await waiting.done

    async def finish(self, device: str, batches: int) -> Weights:
        if (seat := self._seats.get(device)) is not None:
            seat.total = batches
            self._advance()
            await self._ended.wait()
        if device in self._errors:
            raise self._errors[device]
        if device not in self._seats:
            return {}
        if self._weights is None:  # the devices of a group share one result
            self._weights = asyncio.create_task(self._read_weights())
        return await asyncio.shield(self._weights)

    def drop(self, device: str) -> None:
        seat = self._seats.pop(device, None)
        if seat is not None:
            seat.release()
            self._advance()

    def end(self) -> None:
        for device in tuple(self._seats):
            self.drop(device)

    # ---- steps ----

    def _advance(self) -> None:
        """Start the next step if the next upload of every remaining device has arrived."""
        if self._running is not None:
            return
        going = {device: seat for device, seat in self._seats.items() if not seat.complete}
        if not going:
            self._ended.set()
            for seat in self._seats.values():
                seat.release()
        elif all(seat.next in seat.uploads for seat in going.values()):
            used = {device: seat.take() for device, seat in going.items()}
            self._ready_ns = now_ns()
            self._running = asyncio.create_task(self._step(used))

    async def _step(self, used: dict[str, _Waiting]) -> None:
        uploads = {device: waiting.tensors for device, waiting in used.items()}
        try:
            replies, start_ns, end_ns, spent = await self._trainer.run_step(self.half, uploads)
        except Exception as error:
            self._break(named(error, self.half.devices), used.values())
        else:
            self.busy_ns += end_ns - start_ns
            self._settle(used, replies, start_ns, end_ns, spent)
        self._running = None
        self._advance()

    def _settle(
        self, used: dict[str, _Waiting], replies: Replies, start_ns: int, end_ns: int, spent: Spent | None
    ) -> None:
        """Answer the uploads of a step. A device whose upload could not be used leaves the half."""
        results = {device: replies.get(device, {}) for device in used}
        good = tuple(device for device, reply in results.items() if not isinstance(reply, EdgebedError))
        for device, waiting in used.items():
            reply = results[device]
            if isinstance(reply, EdgebedError):
                self._refuse(device, reply)
                waiting.settle(reply)
            else:
                result = StepResult(start_ns, end_ns, good, waiting.batch, reply, self._ready_ns, spent)
                waiting.settle(result if device in self._seats else None)

    def _refuse(self, device: str, error: EdgebedError) -> None:
        """Refuse what a device sent: the device gets the error, and its group continues without it."""
        self._errors[device] = error
        self.drop(device)

    def _break(self, error: EdgebedError, used: Iterable[_Waiting]) -> None:
        """The half cannot continue. All its devices get the error, now or with their next upload."""
        for waiting in used:
            waiting.settle(error)
        for device, seat in self._seats.items():
            self._errors[device] = error
            seat.release(error)
        self._seats.clear()

    def take_reading(self) -> Reading | None:
        taken, self._reading = self._reading, None
        return taken

    async def _read_weights(self) -> Weights:
        start_ns = now_ns()
        weights, spent = await self._trainer.read_weights(self.half)
        self._reading = Reading(start_ns, now_ns(), tuple(self._seats), spent)
        if why := unfit(weights):
            devices = ", ".join(self.half.devices)
            raise DivergedError(f"training diverged: in the server half of {devices} {why}", hint=LOWER)
        return weights


def named(error: Exception, devices: tuple[str, ...]) -> EdgebedError:
    """An error of a step, with the names of the devices."""
    if isinstance(error, EdgebedError):
        return error
    text = f"the server half of {', '.join(devices)} failed: {type(error).__name__}: {error}"
    return RunError(text, hint="see the method's server half; the other devices continue")
