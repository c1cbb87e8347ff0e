"""What the command line asks for, and how it is told what goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from orchestrator.experiment import Experiment
from orchestrator.records.failures import failure_line
from orchestrator.records.formatting import accuracy
from orchestrator.records.types import Record
from orchestrator.rounds.driver import RoundResult
from orchestrator.rounds.progress import Progress

Notify = Callable[[str], None]
"""Tells the person at the terminal what is going on, one line at a time."""


def quiet(line: str) -> None:
    """A Notify that says nothing."""


class Request(msgspec.Struct, frozen=True):
    """What the command line asks for. Methods are named by their place in the experiment's list.

    Attributes:
        path: of the experiment file; paths in it are relative to its folder.
        series: what the runs of one experiment have in common; empty: a new one begins.
        begun: folders of runs to go on with.
        finished: folders of runs that are whole, and stay as they are.
        plan: a run whose recorded assignments are given to the devices, instead of what the method would plan.
    """

    experiment: Experiment
    path: Path
    runs: Path
    backend: str | None = None
    broker_url: str | None = None
    allow_uncalibrated: bool = False
    series: str = ""
    begun: Mapping[int, Path] = {}
    finished: Mapping[int, Path] = {}
    plan: Path | None = None


class Watch:
    """What a run tells the terminal. The default says a line per round, and one per device that fails."""

    def __init__(self, notify: Notify) -> None:
        self.notify = notify
        self.folders: list[Path] = []  # of the runs that have begun, in their order

    def run(self, method: str, folder: Path, rounds: int) -> None:
        self.folders.append(folder)
        self.notify(f"run {folder.name}: {method}")

    def record(self, record: Record) -> None:
        """Every record, as it is written. Must return at once: the run waits for it."""
        line = failure_line(record)
        if line is not None:
            self.notify(line)

    def round(self, method: str, progress: Progress, result: RoundResult, seconds: float, dilation: float) -> None:
        self.notify(
            f"{method} round {result.round + 1:3d}: {seconds / dilation:7.2f} s, "
            f"accuracy {accuracy(progress.accuracy):>6} after {progress.elapsed_s / dilation:8.1f} s, "
            f"{len(result.contributions)} merged"
        )
