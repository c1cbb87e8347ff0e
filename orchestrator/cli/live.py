"""What a terminal shows while a run goes on: the round, every device with what it does, who the round waits for.

Fed with records; drawn a few times a second whatever comes in, so that it cannot slow a run.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from orchestrator.records import types as t
from orchestrator.records.formatting import accuracy as as_accuracy
from orchestrator.records.formatting import size
from orchestrator.runs import session

PER_SECOND = 2
MOST_DEVICES = 24
"""Rows; of a larger fleet those that are still at work come first."""


class Device(msgspec.Struct):
    """What is known of one device. Times are ns of the orchestrator's clock."""

    name: str
    profile: str = ""
    state: str = "waiting"
    cut: int | None = None
    bytes: int = 0  # this round, both ways
    since_ns: int = 0  # its task was sent
    last_ns: int = 0  # how long its last task took
    took_ns: int | None = None  # this round, once done

    def share(self, now_ns: int) -> float:
        """Of the task, judged by how long the last one took; 1 once done."""
        if self.took_ns is not None:
            return 1.0
        return min(0.99, (now_ns - self.since_ns) / self.last_ns) if self.last_ns and self.since_ns else 0.0


class State:
    """Folds records into what is shown. Pure but for the records it is given."""

    def __init__(self) -> None:
        self.devices: dict[str, Device] = {}
        self.method, self.rounds, self.round, self.dilation = "", 0, 0, 1.0
        self.accuracy: float | None = None
        self.doing, self.straggler, self.enforcement = "starting", "", ""
        self.round_ns = 0

    def add(self, record: t.Record) -> None:
        match record:
            case t.RunStarted():
                self.devices = {info.name: Device(info.name, info.profile) for info in record.devices}
                self.method, self.dilation, self.enforcement = record.method, record.dilation, record.enforcement
                self.round, self.accuracy, self.straggler, self.round_ns = record.resumed_from, None, "", 0
            case t.RoundStarted():
                self._begin(record)
            case t.OrchestratorPhase():
                self.doing = "" if record.name == "plan" else self.doing
            case t.RoundFinished():
                self.doing = "evaluating"
                self.straggler = self._slowest()
            case t.Evaluated():
                self.accuracy = record.accuracy
            case t.RunFinished():
                self.doing = record.why
            case _:
                self._device(record)

    def _begin(self, record: t.RoundStarted) -> None:
        self.round, self.round_ns, self.doing = record.round + 1, record.at_ns, ""
        for name, device in self.devices.items():
            if record.lane and name not in record.devices:
                continue  # it may be at work in another lane
            assignment = record.assignments.get(name)
            device.state = "waiting" if name in record.devices or device.state == "away" else "not drawn"
            device.cut = assignment.stages if assignment is not None else None
            device.bytes, device.since_ns, device.took_ns = 0, 0, None

    def _device(self, record: t.Record) -> None:
        device = self.devices.get(getattr(record, "device", ""))
        if device is None:
            return
        match record:
            case t.TaskSent():
                device.state, device.since_ns = "download", record.at_ns
            case t.TaskDelivered():
                device.state, device.bytes = "computing", device.bytes + record.bytes
            case t.UploadReceived() | t.ReplyDelivered():
                device.bytes += record.bytes
            case t.UpdateReceived():
                device.state, device.bytes = "server half", device.bytes + record.bytes
            case t.DeviceDone():
                device.state, device.took_ns = "done", int(record.seconds * 1e9)
                device.last_ns = device.took_ns
            case t.DeviceOut():
                device.state = f"out: {record.how}"
            case t.DeviceLeft():
                device.state = "away"
            case t.DeviceJoined():
                device.state = "waiting"
            case t.LimitsSet():
                device.profile = record.profile
            case _:
                pass

    def _slowest(self) -> str:
        done = [device for device in self.devices.values() if device.took_ns is not None]
        return max(done, key=lambda device: device.took_ns or 0).name if len(done) > 1 else ""

    def waiting_for(self) -> list[str]:
        """Devices at work, once others are done."""
        at_work = [d.name for d in self.devices.values() if d.state in ("download", "computing", "server half")]
        return at_work if any(device.took_ns is not None for device in self.devices.values()) else []

    def seconds(self, ns: int) -> float:
        return ns / 1e9 / self.dilation


def view(state: State, now_ns: int) -> RenderableType:
    """What is drawn at `now_ns` of the orchestrator's clock."""
    return Group(_head(state, now_ns), _table(state, now_ns), _foot(state))


def _head(state: State, now_ns: int) -> RenderableType:
    accuracy = "" if state.accuracy is None else f" · accuracy {as_accuracy(state.accuracy)}"
    elapsed = f" · {state.seconds(now_ns - state.round_ns):.1f} s" if state.round_ns else ""
    held = f" · limits held by {state.enforcement}, D = {state.dilation:.3g}" if state.enforcement else ""
    doing = f" · {state.doing}" if state.doing else ""
    title = f"{state.method} round {state.round} of {state.rounds}{elapsed}{accuracy}{held}{doing}"
    grid = Table.grid(padding=(0, 1))
    grid.add_row(Text(title, style="bold", no_wrap=True, overflow="ellipsis"))
    done = max(0, state.round - (0 if state.doing else 1))
    grid.add_row(ProgressBar(total=max(1, state.rounds), completed=done, width=60))
    return grid


def _table(state: State, now_ns: int) -> RenderableType:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("device", "profile", "state"):
        table.add_column(name, no_wrap=True)
    for name in ("cut", "bytes", "task"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", width=22)
    shown = (
        sorted(state.devices.values(), key=lambda d: d.took_ns is not None) if _many(state) else state.devices.values()
    )
    for device in list(shown)[:MOST_DEVICES]:
        share, took = device.share(now_ns), device.took_ns
        spent = took if took is not None else now_ns - device.since_ns if device.since_ns else None
        cells = (device.name, device.profile, device.state, "–" if device.cut is None else str(device.cut))
        figures = size(device.bytes), "–" if spent is None else f"{state.seconds(spent):.1f} s"
        style = "red" if device.state == "away" or device.state.startswith("out") else ""
        bar = ProgressBar(total=1.0, completed=share, width=22)
        table.add_row(*(escape(cell) for cell in (*cells, *figures)), bar, style=style)
    return table


def _many(state: State) -> bool:
    return len(state.devices) > MOST_DEVICES


def _foot(state: State) -> RenderableType:
    more = f"… and {len(state.devices) - MOST_DEVICES} more devices. " if _many(state) else ""
    waiting = state.waiting_for()
    named = ", ".join(waiting[:3]) + (f" and {len(waiting) - 3} more" if len(waiting) > 3 else "")
    last = f"The last round's straggler: {state.straggler}." if state.straggler else ""
    return Text(more + (f"Waiting for {named}. " if waiting else "") + last, style="dim")


class LiveWatch(session.Watch):
    """A view that stays at the bottom of the terminal; lines go above it."""

    def __init__(self, console: Console) -> None:
        super().__init__(lambda line: console.print(escape(line), highlight=False, soft_wrap=True))
        self._state, self._simulated = State(), False
        self._live = Live(console=console, refresh_per_second=PER_SECOND, transient=True, get_renderable=self._view)

    def __enter__(self) -> LiveWatch:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def _view(self) -> RenderableType:
        return view(self._state, time.monotonic_ns()) if self._state.method else Text("")

    def run(self, method: str, folder: Path, rounds: int) -> None:
        super().run(method, folder, rounds)
        self._state.rounds = rounds

    def record(self, record: Any) -> None:
        super().record(record)
        if isinstance(record, t.RunStarted):
            self._simulated = record.enforcement == "simulated"
        if not self._simulated:  # else its times are not those of the clock that the view is drawn by
            self._state.add(record)
