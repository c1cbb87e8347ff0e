"""The files of one run: its resolved experiment, its records, its checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from edgebed.errors import UsageError
from edgebed.models.staged import Weights
from orchestrator.data import located
from orchestrator.experiment import Experiment
from orchestrator.fleet.base import Enforcement
from orchestrator.records.reader import read
from orchestrator.records.types import RunStarted
from orchestrator.rounds.loop import Progress
from orchestrator.yaml_file import write_yaml


class Saved(msgspec.Struct):
    """A checkpoint: global weights, what the run has reached, and what its method remembers as tensors."""

    weights: Weights
    progress: Progress
    tensors: Weights


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.experiment = path / "experiment.yaml"
        self.records = path / "records.jsonl"
        self.checkpoint = path / "checkpoint.safetensors"

    def save(self, weights: Weights, progress: Progress, tensors: Weights) -> None:
        """Keep the checkpoint of the last round: one file, written aside and renamed, so a kill leaves the old one."""
        parts = ((WEIGHTS, weights), (METHOD, tensors))
        named = {f"{kind}{name}": value.contiguous() for kind, part in parts for name, value in part.items()}
        part = self.checkpoint.with_suffix(".part")
        save_file(named, part, {PROGRESS: msgspec.json.encode(progress).decode()})
        part.replace(self.checkpoint)

    def restore(self) -> Saved | None:
        """The last checkpoint, or None before the first. Raises UsageError for one that is damaged."""
        if not self.checkpoint.exists():
            return None
        try:
            with safe_open(self.checkpoint, framework="pt") as file:
                progress = msgspec.json.decode((file.metadata() or {})[PROGRESS], type=Progress)
                named = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        except (SafetensorError, msgspec.DecodeError, KeyError) as error:
            raise UsageError(f"{self.checkpoint} is damaged: {error}", cure="run the experiment anew") from None
        return Saved(_named(named, WEIGHTS), progress, _named(named, METHOD))


WEIGHTS, METHOD, PROGRESS = "weights/", "method/", "edgebed-progress"


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
