"""What a program is told while an experiment runs, and the Watch that tells it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import msgspec

from edgebed.errors import counted
from orchestrator.records import types as t
from orchestrator.records.shown.loglines import failure_line
from orchestrator.records.words.formatting import accuracy
from orchestrator.rounds.job import RoundResult
from orchestrator.rounds.progress import Progress
from orchestrator.runs.request import Watch


class Line(msgspec.Struct, frozen=True):
    """A line of text, as the command line prints it: what is being prepared, calibrated or removed."""

    text: str

    def __str__(self) -> str:
        return self.text


class RunBegan(msgspec.Struct, frozen=True):
    """A run of one method begins. `path`: its folder. `rounds`: at most so many."""

    method: str
    path: Path
    rounds: int

    def __str__(self) -> str:
        return f"run {self.path.name}: {self.method}"


class RoundBegan(msgspec.Struct, frozen=True):
    """A round is planned; its tasks are about to be sent to `devices`. `round` counts from 1."""

    method: str
    round: int
    devices: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.method} round {self.round:3d}: {counted(len(self.devices), 'device')}"


class RoundEnded(msgspec.Struct, frozen=True):
    """A round is merged and evaluated. `round` counts from 1; seconds are divided by the dilation.

    Attributes:
        duration_s: of this round, without the evaluation.
        elapsed_s: of all rounds so far.
        accuracy: of the merged weights, between 0 and 1.
        merged_devices: how many devices' work is in the merged weights.
    """

    method: str
    round: int
    duration_s: float
    elapsed_s: float
    accuracy: float
    merged_devices: int

    def __str__(self) -> str:
        return (
            f"{self.method} round {self.round:3d}: {self.duration_s:7.2f} s, accuracy {accuracy(self.accuracy):>6} "
            f"after {self.elapsed_s:8.1f} s, {self.merged_devices} merged"
        )


class DeviceLeftOut(msgspec.Struct, frozen=True):
    """A device's work in a round is left out. `round` counts from 1. `how`: lost, failed, refused, diverged, late or
    cancelled. `why`: the cause, as a sentence."""

    method: str
    round: int
    device: str
    how: str
    why: str

    def __str__(self) -> str:
        record = t.DeviceOut(0, self.round - 1, self.device, self.how, self.why)
        return failure_line(record) or f"round {self.round}: {self.device} {self.how}"


class RunEnded(msgspec.Struct, frozen=True):
    """A run has ended. `why`: target reached, budget spent, rounds done, interrupted, or `error: …`."""

    method: str
    path: Path
    why: str

    def __str__(self) -> str:
        return f"run {self.path.name}: {self.why}"


Event = Line | RunBegan | RoundBegan | RoundEnded | DeviceLeftOut | RunEnded


class EventWatch(Watch):
    """A Watch that keeps what it hears as events, for another thread to take; that thread may stop the work.

    `attach` and all that a Watch is told come from the thread of the work; `events` and `stop` from the other one.
    """

    def __init__(self) -> None:
        super().__init__(lambda line: self._put(Line(line)))
        self._queue: SimpleQueue[Event | None] = SimpleQueue()
        self._methods: dict[Path, str] = {}
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[object] | None = None

    def events(self) -> Iterator[Event]:
        """Events in their order; waits for each of them, until `close`."""
        while (event := self._queue.get()) is not None:
            yield event

    def close(self) -> None:
        """The work has ended: no event will come."""
        self._queue.put(None)

    def stop(self) -> None:
        """Cancel the work: at once where it is attached, else as soon as it attaches."""
        self._stopping = True
        if self._loop is not None and self._task is not None:
            with contextlib.suppress(RuntimeError):  # that loop is closed: the next `attach` sees `_stopping`
                self._loop.call_soon_threadsafe(self._task.cancel)

    def attach(self) -> None:
        """`stop` cancels the current task from now on. Raises CancelledError where it was called before."""
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        if self._stopping:
            raise asyncio.CancelledError

    def run(self, method: str, folder: Path, rounds: int) -> None:
        self.folders.append(folder)
        self._methods[folder] = method
        self._put(RunBegan(method, folder, rounds))
        self.attach()

    def record(self, folder: Path, record: t.Record) -> None:
        method = self._methods.get(folder, "")
        match record:
            case t.RoundStarted():
                self._put(RoundBegan(method, record.round + 1, record.devices))
            case t.DeviceOut():
                self._put(DeviceLeftOut(method, record.round + 1, record.device, record.how, record.why))
            case t.RunFinished():
                self._put(RunEnded(method, folder, record.why))

    def round(self, method: str, progress: Progress, result: RoundResult, seconds: float, dilation: float) -> None:
        duration_s, elapsed_s = seconds / dilation, progress.elapsed_s / dilation
        merged = len(result.contributions)
        self._put(RoundEnded(method, result.round + 1, duration_s, elapsed_s, progress.accuracy, merged))
        if self._stopping:  # the attached task may have ended: interleaved simulations have one for each round
            raise asyncio.CancelledError

    def _put(self, event: Event) -> None:
        self._queue.put(event)
