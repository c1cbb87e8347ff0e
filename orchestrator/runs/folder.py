"""The files of one run: its resolved experiment, its records, its checkpoints."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import msgspec
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from edgebed.errors import FileError, UsageError
from edgebed.models.staged import Weights
from orchestrator.experiment import Experiment
from orchestrator.files.output import keep, sync_folder, write_aside
from orchestrator.files.yaml_file import write_yaml
from orchestrator.fleet.base import Enforcement
from orchestrator.records.reader import decode, read
from orchestrator.records.types import RunFinished, RunStarted
from orchestrator.rounds.progress import Progress
from orchestrator.runs.data import located


class Saved(msgspec.Struct):
    """A checkpoint: global weights, what the run has reached, and what its method remembers as tensors."""

    weights: Weights
    progress: Progress
    tensors: Weights


class Series(msgspec.Struct, frozen=True):
    """What the runs of one experiment have in common, so that one of them leads to the others."""

    id: str
    place: int  # of this run's method in the list
    methods: list[dict[str, Any]]  # of the whole experiment


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.experiment = path / "experiment.yaml"
        self.series = path / "series.json"
        self.plan = path / "plan.jsonl"  # of a run that repeats the recorded plan of another
        self.records = path / "records.jsonl"
        self.checkpoint = path / "checkpoint.safetensors"
        self.previous = path / "checkpoint.previous.safetensors"

    def make(self, experiment: bytes, series: Series | None = None) -> None:
        """Make the folder with its experiment in it, so that both outlast a loss of power. Raises FileError."""
        try:
            self.path.mkdir(parents=True)
            sync_folder(self.path.parent)
        except OSError as error:
            raise FileError.of(error, self.path) from None
        keep(self.experiment, experiment)
        if series is not None:
            keep(self.series, msgspec.json.encode(series))

    def read_series(self) -> Series | None:
        """The experiment that the run belongs to; None where nothing readable says so."""
        try:
            return msgspec.json.decode(self.series.read_bytes(), type=Series)
        except (OSError, msgspec.DecodeError):
            return None

    def save(self, weights: Weights, progress: Progress, tensors: Weights) -> None:
        """Keep the checkpoint of the last round, and the one before it. It is written aside, is on the disk, and is
        then renamed: after a kill or a loss of power one of the two is whole. Raises FileError.
        """
        parts = ((WEIGHTS, weights), (METHOD, tensors))
        named = {f"{kind}{name}": value.contiguous() for kind, part in parts for name, value in part.items()}
        aside = write_aside(self.checkpoint, save(named, {PROGRESS: msgspec.json.encode(progress).decode()}))
        try:
            if self.checkpoint.exists():
                self.checkpoint.replace(self.previous)
            aside.replace(self.checkpoint)
            sync_folder(self.path)
        except OSError as error:
            raise FileError.of(error, self.checkpoint) from None

    def restore(self, notify: Callable[[str], None] = lambda line: None) -> Saved | None:
        """The last checkpoint; where it is damaged or missing the one before it, and `notify` is told. None: there is
        none yet. Raises UsageError where there are some and none is whole.
        """
        damage = []
        for path in (self.checkpoint, self.previous):
            try:
                saved = _read(path)
            except Damaged as error:
                damage.append(f"{path} {error}")
                continue
            if damage:
                notify(f"{'; '.join(damage)}: going on from the one before it, after round {saved.progress.round}")
            return saved
        if not self.checkpoint.exists() and not self.previous.exists():
            return None
        raise UsageError("; ".join(damage), hint="run the experiment anew")

    def ended(self) -> str:
        """Why the run ended; "" where it goes on, or was killed. What devices still said comes after that record, so
        it is looked for from the end of the file."""
        try:
            with self.records.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
                at = data.rfind(b'{"type":"run_finished"')
                if at <= data.rfind(b'{"type":"run_started"'):
                    return ""
                last = decode(data[at : data.find(b"\n", at)])
        except (OSError, ValueError):  # none yet, or an empty one
            return ""
        return last.why if isinstance(last, RunFinished) else ""

    def progress(self) -> Progress:
        """What the run has reached, as its last whole checkpoint says; no weights are read."""
        for path in (self.checkpoint, self.previous):
            with contextlib.suppress(Damaged):
                return _read(path, weights=False).progress
        return Progress()


WEIGHTS, METHOD, PROGRESS = "weights/", "method/", "edgebed-progress"


class Damaged(Exception):
    """A checkpoint that is not there, or not whole."""


def _read(path: Path, *, weights: bool = True) -> Saved:
    if not path.exists():
        raise Damaged("is missing")
    try:
        with safe_open(path, framework="pt") as file:
            progress = msgspec.json.decode((file.metadata() or {})[PROGRESS], type=Progress)
            named = {name: file.get_tensor(name) for name in file.keys()} if weights else {}  # noqa: SIM118 - no mapping
    except (SafetensorError, msgspec.DecodeError, KeyError, OSError) as error:
        raise Damaged(f"is damaged ({error})") from None
    return Saved(_named(named, WEIGHTS), progress, _named(named, METHOD))


def _named(tensors: Weights, kind: str) -> Weights:
    return {name.removeprefix(kind): value for name, value in tensors.items() if name.startswith(kind)}


def resolved(experiment: Experiment, path: Path, options: dict[str, Any], dilation: float) -> bytes:
    """The experiment as it runs, with one method, its dilation and absolute paths: enough to resume it."""
    experiment = msgspec.structs.replace(
        experiment,
        fleet=str((path.parent / experiment.fleet).resolve()),
        data=located(experiment.data, path),
        methods=[options],
        dilation=dilation,
    )
    return write_yaml(msgspec.to_builtins(experiment))


def backend_of(files: RunFolder) -> str | None:
    """The backend a run had, in the word that asks for it; None where it never began."""
    started = [record for record in read(files.records) if isinstance(record, RunStarted)]
    if not started:
        return None
    return "software" if started[-1].enforcement == Enforcement.SOFTWARE else started[-1].backend
