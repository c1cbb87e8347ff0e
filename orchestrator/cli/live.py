"""What a terminal shows while a run goes on: the round, every device with what it does, who the round waits for.

It takes in records as they are written, and is drawn a few times a second, so that it does not slow a run.
"""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from orchestrator.cli.console import columns
from orchestrator.experiment import MOST_ROUNDS
from orchestrator.records import types as t
from orchestrator.records.critical.bound_by import in_words, more_words
from orchestrator.records.live.reducer import reduce
from orchestrator.records.live.run_state import DeviceState, RunState
from orchestrator.records.shown.round_view import waited_for
from orchestrator.records.words import formatting, vocabulary
from orchestrator.records.words.formatting import accuracy, known, seconds, size
from orchestrator.runs import session

PER_SECOND = 2
MOST_DEVICES = 24
"""Rows; of a larger fleet those that are still at work come first."""


def view(state: RunState, rounds: int, now_ns: int) -> RenderableType:
    """What is drawn at `now_ns` of the orchestrator's clock, of a run of `rounds` rounds."""
    return Group(_head(state, rounds, now_ns), _table(state, now_ns), Text(_foot(state, now_ns), style="dim"))


def _head(state: RunState, rounds: int, now_ns: int) -> RenderableType:
    row, started = state.current, state.session.started
    number = started.resumed_from if row is None else row.number + 1
    parts = [f"{started.method} round {number}" + (f" of {rounds}" if rounds < MOST_ROUNDS else "")]
    if row is not None:
        parts.append(seconds((now_ns - row.start_ns) / 1e9 / state.dilation))
    if state.accuracy is not None:
        parts.append(f"accuracy {accuracy(state.accuracy)}")
    boards = [
        [each.name for each in started.devices if each.board and each.unlimited == free] for free in (True, False)
    ]
    parts.append(f"{vocabulary.held_by(started.enforcement, *boards)}, D = {formatting.number(state.dilation)}")
    doing = _doing(state)
    grid = Table.grid(padding=(0, 1))
    title = " · ".join([*parts, *([doing] if doing else [])])
    grid.add_row(Text(title, style="bold", no_wrap=True, overflow="ellipsis"))
    grid.add_row(ProgressBar(total=max(1, rounds), completed=max(0, number - (0 if doing else 1)), width=60))
    return grid


def _doing(state: RunState) -> str:
    """What the run does outside its rounds; empty within one."""
    row = state.current
    if state.ended or row is None:
        return state.ended or "starting"
    if row.seconds is None:
        return ""
    facts = state.session.rounds.get(row.number)
    return "evaluating" if facts is None or facts.turn is None else "other methods have the fleet"


def _table(state: RunState, now_ns: int) -> RenderableType:
    heads = columns("device", "profile", "state", ">cut", ">bytes", ">task", no_wrap=True)
    table = Table(*heads, Column(width=22), box=SIMPLE_HEAD, pad_edge=False)
    devices = list(state.devices.values())
    if len(devices) > MOST_DEVICES:
        devices.sort(key=lambda device: device.took_s is not None)
    for device in devices[:MOST_DEVICES]:
        activity, cut = state.activity(device.name), device.cuts[-1] if device.cuts else None
        cells = (device.name, device.profile, activity, known(cut, str), size(device.round_bytes))
        style = "red" if activity in ("away", "left out") else ""
        bar = ProgressBar(total=1.0, completed=share(state, device, now_ns), width=22)
        table.add_row(
            *(escape(cell) for cell in (*cells, known(_spent_s(state, device, now_ns), seconds))), bar, style=style
        )
    return table


def _spent_s(state: RunState, device: DeviceState, now_ns: int) -> float | None:
    """Seconds of a device's task so far, or of all of it once done."""
    if device.took_s is not None or not device.since_ns:
        return device.took_s
    return (now_ns - device.since_ns) / 1e9 / state.dilation


def share(state: RunState, device: DeviceState, now_ns: int) -> float:
    """Part of a device's task that is over, judged by how long the one before took; 1 once done."""
    if device.took_s is not None:
        return 1.0
    spent = _spent_s(state, device, now_ns)
    return min(0.99, spent / device.before_s) if spent and device.before_s else 0.0


def _foot(state: RunState, now_ns: int) -> str:
    parts, (waiting, since_ns), last = [], waited_for(state), state.last_finished
    if len(state.devices) > MOST_DEVICES:
        parts.append(f"… and {len(state.devices) - MOST_DEVICES} more devices.")
    if waiting:
        waited = seconds((now_ns - since_ns) / 1e9 / state.dilation)
        parts.append(f"Waiting for {formatting.some(waiting, 3)} for {waited}.")
    if last is not None and last.straggler:
        parts.append(f"The last round's straggler: {last.straggler}.")
    if last is not None and last.disturbed:
        parts.append(f"The host disturbed it: {vocabulary.disturbances(last.disturbed)}.")
    if last is not None and last.bounds is not None:
        parts += [f"The last round was {in_words(last.bounds)}.", more_words(last.bounds)]
    return " ".join(parts)


class LiveWatch(session.Watch):
    """A view that stays at the bottom of the terminal; lines go above it."""

    def __init__(self, console: Console) -> None:
        super().__init__(lambda line: console.print(escape(line), highlight=False, soft_wrap=True))
        self._rounds, self._simulated = 0, False
        self._followed: tuple[RunState, deque[t.Record]] = RunState(), deque()  # and the records since the last drawing
        self._runs: dict[Path, tuple[RunState, deque[t.Record]]] = {}
        self._live = Live(console=console, refresh_per_second=PER_SECOND, transient=True, get_renderable=self._view)

    def __enter__(self) -> LiveWatch:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def _view(self) -> RenderableType:
        """Called by the thread that draws: reading the records costs the run nothing."""
        state, new = self._followed
        reduce(state, [(0, new.popleft()) for _ in range(len(new))])
        return view(state, self._rounds, time.monotonic_ns()) if state.sessions else Text("")

    def run(self, method: str, folder: Path, rounds: int) -> None:
        super().run(method, folder, rounds)
        self._runs[folder], self._rounds = (RunState(), deque()), rounds

    def record(self, folder: Path, record: Any) -> None:
        """Interleaved runs are shown in turns."""
        super().record(folder, record)
        self._followed = self._runs[folder]
        if isinstance(record, t.RunStarted):
            self._simulated = record.enforcement == t.SIMULATED
        if not self._simulated:  # else its times are not those of the clock that the view is drawn by
            self._followed[1].append(record)
