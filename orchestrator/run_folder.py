"""The files of one run: its resolved experiment, its records, its checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from safetensors.torch import load_file, save_file

from edgebed.models.staged import Weights
from orchestrator.experiment import Experiment
from orchestrator.fleet.base import Enforcement
from orchestrator.records.reader import read
from orchestrator.records.types import RunStarted
from orchestrator.rounds.loop import Progress


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
        self.checkpoints = path / "checkpoints"

    def save(self, weights: Weights, progress: Progress, tensors: Weights) -> None:
        """Keep the checkpoints of the last two rounds. Written aside and renamed, so a kill leaves the old one."""
        self.checkpoints.mkdir(exist_ok=True)
        for kind, kept in (("round", weights), ("method", tensors)):
            self._write(f"{kind}-{progress.round:05d}", kept)
        part = self.checkpoints / "progress.part"
        part.write_bytes(msgspec.json.encode(progress))
        part.rename(self.checkpoints / "progress.json")
        for kind in ("round", "method"):
            for old in sorted(self.checkpoints.glob(f"{kind}-*.safetensors"))[:-2]:
                old.unlink()

    def _write(self, name: str, tensors: Weights) -> None:
        part = self.checkpoints / f"{name}.part"
        save_file({k: v.contiguous() for k, v in tensors.items()}, part)
        part.rename(self.checkpoints / f"{name}.safetensors")

    def restore(self) -> Saved | None:
        """The last checkpoint, or None before the first."""
        try:
            progress = msgspec.json.decode((self.checkpoints / "progress.json").read_bytes(), type=Progress)
        except FileNotFoundError:
            return None
        weights, tensors = (
            load_file(self.checkpoints / f"{kind}-{progress.round:05d}.safetensors") for kind in ("round", "method")
        )
        return Saved(weights, progress, tensors)


def resolved(experiment: Experiment, path: Path, options: dict[str, Any], dilation: float) -> bytes:
    """The experiment as it runs, with one method, its dilation and absolute paths: enough to resume it."""
    experiment = msgspec.structs.replace(
        experiment,
        fleet=str((path.parent / experiment.fleet).resolve()),
        methods=[options],
        dilation=dilation,
    )
    return msgspec.yaml.encode(msgspec.to_builtins(experiment))


def backend_of(files: RunFolder) -> str | None:
    """The backend a run had, in the word that asks for it; None where it never began."""
    started = [record for record in read(files.records) if isinstance(record, RunStarted)]
    if not started:
        return None
    return "software" if started[-1].enforcement == Enforcement.SOFTWARE else started[-1].backend
