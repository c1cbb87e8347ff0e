"""What all methods of a simulated experiment share: fleet, data, model and costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import torch

from edgebed.accelerator import why_not_cuda
from edgebed.datasets.shard import Shard
from edgebed.errors import UsageError
from edgebed.methods.base import Method
from edgebed.models.staged import StagedModel
from edgebed.typed import nearest
from orchestrator.experiment import Experiment, Surrogate
from orchestrator.fleet.spec.profile import FleetSpec
from orchestrator.records.reader import read
from orchestrator.records.run_index import sort
from orchestrator.references.layer_profile import measure
from orchestrator.references.work_laws import WorkLaws
from orchestrator.runs.data import Prepared
from orchestrator.runs.folder import RunFolder
from orchestrator.runs.request import Watch
from orchestrator.runs.run import start_model
from orchestrator.simulation.calibration import Calibration, save_calibration
from orchestrator.simulation.choose_costs import calibration_of, cost_model
from orchestrator.simulation.costs import CostModel
from orchestrator.simulation.fitting import fit
from orchestrator.simulation.kept import Kept, kept_now
from orchestrator.simulation.server import slots
from orchestrator.simulation.surrogate import surrogate_costs
from orchestrator.simulation.world import WorldState


class SimulationRequest(msgspec.Struct, frozen=True):
    """A simulation that is asked for.

    Attributes:
        path: of the experiment file; paths in it are relative to its folder.
        runs: the folder in which the runs' folders are made.
        devices: number of devices, with the profiles of the fleet in turn; None: those of the fleet.
        accelerator: cpu or cuda.
        calibrate_from: folders of real runs that the costs are taken from.
        save_calibration: the file that keeps that calibration.
        built: the agents have built the model already, as on a fleet that has carried out another run.
        checkpoint_s: least seconds of wall time between two checkpoints; None: as many as keep them cheap.
        kept: of the runs that go on; None: all runs are new.
        series, begun, finished: as in `runs.request.Request`.
        learned: nothing is trained, and the only method of the experiment has these accuracies, test by test.
    """

    experiment: Experiment
    path: Path
    runs: Path
    devices: int | None = None
    accelerator: str = "cpu"
    calibrate_from: tuple[Path, ...] = ()
    save_calibration: Path | None = None
    built: bool = False
    checkpoint_s: float | None = None
    kept: Kept | None = None
    series: str = ""
    begun: Mapping[int, Path] = {}
    finished: Mapping[int, Path] = {}
    learned: Sequence[float] | None = None


class SimulationContext:
    """What the methods of an experiment share.

    Attributes:
        shards: by device.
        built: devices whose agents have built their model; all runs share one standing fleet.
        server_cpus: CPUs of a server of its own, after dilation; None: it is as fast as its costs say.
        server_slots: server halves that train at once.
        dilation: of the experiment, else that of the fleet whose costs are used.
        kept: goes into the folder of every run.
    """

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
        self.built: set[str] = set(prepared.shards) if request.built else set()
        for state in self._saved():
            self.built |= {name for name, device in state.fleet.known.items() if device.built}
        self.accelerator = accelerator_named(request.accelerator)
        self.kept = kept_now(request.kept, request.devices, self.accelerator, request.built)
        self._batch = prepared.sample(self.experiment.training.batch_size)
        model, wanted = self.build(), self.experiment.simulation
        made = self._calibrate(WorkLaws(model, self._batch, layers=measure())) if request.calibrate_from else None
        made = made or calibration_of(wanted, request.path) if request.kept is None else request.kept.calibration
        self.kept = msgspec.structs.replace(self.kept, calibration=made)
        self.costs: CostModel = self._costs(model, wanted.as_if)
        asked = self.experiment.simulation.dilation
        self.dilation = asked if asked is not None else self.costs.dilation
        server = self.experiment.server
        self.server_cpus = None if server is None else server.cpus / self.dilation
        self.server_slots = slots(self.experiment.simulation, len(spec.devices), self.server_cpus)

    def costs_of(self, method: Method) -> CostModel:
        """The costs of a method's run: those of the experiment's model, or of the method's own form of it."""
        simulation = self.experiment.simulation
        if method.model_spec(self.experiment.model) == self.experiment.model:
            return self.costs
        wanted = simulation.as_if and msgspec.structs.replace(
            simulation.as_if, model=method.model_spec(simulation.as_if.model)
        )
        return self._costs(self.build(method), wanted)

    def _costs(self, model: StagedModel, wanted: Surrogate | None) -> CostModel:
        """As `_new_costs`, with the laws that the runs of the experiment that have begun have measured."""
        costs = self._new_costs(model, wanted)
        if costs.reference is not None:
            for state in self._saved():
                costs.reference.learn(state.laws)
        return costs

    def _new_costs(self, model: StagedModel, wanted: Surrogate | None) -> CostModel:
        """`wanted`: the larger experiment that this one is a surrogate for (`simulation.as_if`)."""
        experiment = self.experiment
        if wanted is not None:
            samples = [shard.samples for shard in self.shards.values()]
            return surrogate_costs(experiment, wanted, model, samples)
        made, codec = self.kept.calibration, experiment.training.codec
        return cost_model(experiment.simulation, model, self._batch, made, experiment.grain, codec)

    def _saved(self) -> Iterator[WorldState]:
        """What the runs of the experiment that have begun left behind."""
        for folder in (*self.request.finished.values(), *self.request.begun.values()):
            if saved := RunFolder(folder).progress().simulation:
                yield msgspec.convert(saved, WorldState)

    def _calibrate(self, reference: WorkLaws) -> Calibration:
        """A calibration from the runs that the request names; written to a file where it names one."""
        request = self.request
        self.watch.notify(f"calibrating from {len(request.calibrate_from)} runs")
        made = fit([sort(read(folder / "records.jsonl")) for folder in request.calibrate_from], reference)
        if request.save_calibration is not None:
            save_calibration(made, request.save_calibration)
        return made

    def build(self, method: Method | None = None) -> StagedModel:
        """A new model, with the weights that every run starts from, or every run of the method."""
        return start_model(self.experiment, self.prepared, self.request.path, method)


def accelerator_named(name: str) -> torch.device:
    """Raises UsageError where torch knows none of that name, or this host has none."""
    if name not in ("cpu", "cuda"):
        raise UsageError(f"there is no accelerator {name!r}{nearest(name, ['cpu', 'cuda'])}", hint="give cpu or cuda")
    if name == "cuda" and (why := why_not_cuda()):
        raise UsageError(f"the simulation cannot train on cuda: {why}", hint="give --accelerator cpu, or leave it out")
    return torch.device(name)
