"""What a caller asks for, and how it is told about the run."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from edgebed.models.staged import Weights
from orchestrator.broker.own import OwnBroker
from orchestrator.experiment import Experiment, Setting
from orchestrator.records.shown.loglines import failure_line, scenario_line
from orchestrator.records.timeline.disturbance import disturbed_line
from orchestrator.records.types import Record
from orchestrator.records.words.formatting import accuracy, setting_texts
from orchestrator.rounds.job import RoundResult
from orchestrator.rounds.progress import Progress

Notify = Callable[[str], None]
"""Tells the user one line: what is prepared, calibrated, run or removed."""


Listener = Callable[[Path, Record], None]
"""Called with the folder of a run and every record as it is written, as `Watch.record`."""


def quiet(line: str) -> None:
    """A Notify that drops the line."""


class ExperimentRequest(msgspec.Struct, frozen=True):
    """An experiment that is asked for, real or simulated."""

    experiment: Experiment
    path: Path  # of the experiment file; paths in it are relative to its folder
    runs: Path  # the folder in which the runs' folders are made
    series: str = ""  # id that all runs of the experiment share; "": a new one is made
    # folders of runs to go on with, by the method's place in the experiment's list; after the runs of the first part
    # (`Experiment.parts`) come those of the next
    begun: Mapping[int, Path] = {}
    finished: Mapping[int, Path] = {}  # folders of runs that have ended and stay as they are, by the same places
    setting: Setting = {}  # of a part: its values of the swept keys
    first_place: int = 0  # of a part: the place of its first method among all runs of the experiment
    part_count: int = 1  # how many parts the experiment has

    @property
    def over(self) -> list[Path]:
        """The runs of a part (`parts`) of which nothing is left to do; empty where something is."""
        places = range(len(self.experiment.methods))
        return [self.finished[place] for place in places] if len(self.finished) == len(places) else []

    @property
    def part_text(self) -> str:
        """Which part this is, where an experiment has several: `part 2 of 6: batch_size 32, seed 2`."""
        number, count = self.first_place // len(self.experiment.methods) + 1, self.part_count
        told = (*setting_texts(self.setting), f"seed {self.experiment.training.seed}")
        return f"part {number} of {count}: {', '.join(told)}" if count > 1 else ""


R = TypeVar("R", bound=ExperimentRequest)


def parts(request: R) -> Iterator[R]:
    """What each part of the experiment (a setting with a seed) has to do, in their order: the keys of `begun` and
    `finished` are places of its methods. All parts share one series."""
    experiment = request.experiment
    series, count = request.series or uuid.uuid4().hex[:12], len(experiment.methods)
    for number, (setting, seed) in enumerate(experiment.parts):

        def own(folders: Mapping[int, Path], first: int = number * count) -> dict[int, Path]:
            return {place - first: folders[place] for place in range(first, first + count) if place in folders}

        yield msgspec.structs.replace(
            request,
            experiment=experiment.part(setting, seed),
            series=series,
            setting=setting,
            first_place=number * count,
            part_count=len(experiment.parts),
            begun=own(request.begun),
            finished=own(request.finished),
        )


class Request(ExperimentRequest, frozen=True):
    """An experiment to run on devices."""

    backend: str | None = None  # overrides that of the fleet file
    own_broker: OwnBroker | None = None  # of the user's own broker
    allow_uncalibrated: bool = False  # run although the calibration fails
    # folder of a run whose recorded assignments the devices get, instead of what the method would plan
    plan: Path | None = None
    # record the CPU time of every piece of the devices' work, as a recording of a reference needs it
    each_piece: bool = False

    def on(self, backend: str | None, broker: OwnBroker | None, *, allow_uncalibrated: bool) -> Request:
        """The same on another backend (None: as it is) or broker."""
        place = {"backend": backend or self.backend, "own_broker": broker}
        return msgspec.structs.replace(self, **place, allow_uncalibrated=allow_uncalibrated)


class Watch:
    """Is told about runs. This one writes a line per round, per device that fails, per step of the scenario, and per
    round that the host disturbed. `listeners`: are told every record too, after `record`."""

    def __init__(self, notify: Notify = quiet) -> None:
        self.notify = notify
        self.listeners: list[Listener] = []
        self.folders: list[Path] = []  # of the runs that have begun, in order

    def run(self, method: str, folder: Path, rounds: int) -> None:
        self.folders.append(folder)
        self.notify(f"run {folder.name}: {method}")

    def record(self, folder: Path, record: Record) -> None:
        """Called with every record as it is written. The run waits for it, so it must return at once. `folder`: of the
        run; interleaved runs write in turns."""
        line = failure_line(record) or disturbed_line(record) or scenario_line(record)
        if line is not None:
            self.notify(line)

    def merged(self, folder: Path, weights: Weights, progress: Progress) -> None:
        """Called after every round with the weights that it gave, before a checkpoint is written."""

    def round(self, method: str, progress: Progress, result: RoundResult, seconds: float, dilation: float) -> None:
        self.notify(
            f"{method} round {result.round + 1:3d}: {seconds / dilation:7.2f} s, "
            f"accuracy {accuracy(progress.accuracy):>6} after {progress.elapsed_s / dilation:8.1f} s, "
            f"{len(result.contributions)} merged"
        )
