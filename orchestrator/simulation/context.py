"""What all methods of a simulated experiment share: fleet, data, model and costs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec
import torch

from edgebed.datasets.shard import Shard
from edgebed.errors import UsageError
from edgebed.models.staged import MODELS, ModelPlugin, StagedModel, seeded
from edgebed.typed import nearest
from orchestrator.experiment import Experiment
from orchestrator.fleet.profile import FleetSpec
from orchestrator.records.reader import read
from orchestrator.records.run_index import sort
from orchestrator.records.types import Record
from orchestrator.rounds.driver import RoundResult
from orchestrator.rounds.loop import Progress
from orchestrator.runs.data import Prepared
from orchestrator.simulation.calibration import Calibration, save_calibration
from orchestrator.simulation.costs import CostModel
from orchestrator.simulation.fitting import fit
from orchestrator.simulation.models import cost_model
from orchestrator.simulation.reference import Reference
from orchestrator.simulation.server import slots
from orchestrator.simulation.surrogate import as_if_costs


class Watch(Protocol):
    """What a simulation tells the terminal (`session.Watch`)."""

    notify: Callable[[str], None]

    def run(self, method: str, folder: Path, rounds: int) -> None: ...
    def record(self, record: Record) -> None: ...
    def round(self, method: str, progress: Progress, result: RoundResult, seconds: float, dilation: float) -> None: ...


class SimulationRequest(msgspec.Struct, frozen=True):
    """What the command line asks for. Paths in the experiment are relative to the folder of `path`."""

    experiment: Experiment
    path: Path
    runs: Path
    devices: int | None = None  # so many, with the fleet's profiles in the same shares
    accelerator: str = "cpu"
    calibrate_from: tuple[Path, ...] = ()  # folders of real runs
    save_calibration: Path | None = None
    built: bool = False  # the fleet has stood for another run: its agents have built the model


class SimulationContext:
    """What the methods of an experiment share."""

    def __init__(
        self,
        request: SimulationRequest,
        spec: FleetSpec,
        prepared: Prepared,
        shards: dict[str, Shard],
        watch: Watch,
    ) -> None:
        self.request, self.spec, self.prepared, self.shards, self.watch = request, spec, prepared, shards, watch
        self.experiment = request.experiment
        # Devices whose agents have built their model: methods share the standing fleet.
        self.built: set[str] = set(prepared.shards) if request.built else set()
        self.accelerator = _accelerator(request.accelerator)
        self.plugin: ModelPlugin = MODELS.create(self.experiment.model, f"{request.path}: model")
        batch = prepared.sample(self.experiment.training.batch_size)
        model = self.build()
        made = self._calibrate(Reference(model, batch)) if request.calibrate_from else None
        self.costs: CostModel = self._as_if(model) or cost_model(
            self.experiment.simulation, request.path, model, batch, made
        )
        self.server_slots = slots(self.experiment.simulation, len(spec.devices))
        asked = self.experiment.simulation.dilation
        self.dilation = asked if asked is not None else self.costs.dilation

    def _as_if(self, model: StagedModel) -> CostModel | None:
        """The costs of the larger experiment, where this one stands for one."""
        wanted = self.experiment.simulation.as_if
        samples = [shard.samples for shard in self.shards.values()]
        return None if wanted is None else as_if_costs(self.experiment, wanted, model, samples)

    def _calibrate(self, reference: Reference) -> Calibration:
        """From the runs that the request names; kept as a file where it says so."""
        request = self.request
        self.watch.notify(f"calibrating from {len(request.calibrate_from)} runs")
        made = fit([sort(read(folder / "records.jsonl")) for folder in request.calibrate_from], reference)
        if request.save_calibration is not None:
            save_calibration(made, request.save_calibration)
        return made

    def build(self) -> StagedModel:
        return seeded(
            lambda: self.plugin.build(self.prepared.input_shape, self.prepared.classes), self.experiment.training.seed
        )


def _accelerator(name: str) -> torch.device:
    """Raises UsageError where torch knows none of that name, or this host has none."""
    if name not in ("cpu", "cuda"):
        raise UsageError(f"there is no accelerator {name!r}{nearest(name, ['cpu', 'cuda'])}", hint="give cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("torch finds no CUDA device on this host", hint="give --accelerator cpu, or leave it out")
    return torch.device(name)
