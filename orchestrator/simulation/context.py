"""What all methods of a simulated experiment share: fleet, data, model and costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import torch

from edgebed.accelerator import why_not_cuda
from edgebed.datasets.shard import Shard
from edgebed.errors import UsageError
from edgebed.methods.base import Batch, Method
from edgebed.models.staged import StagedModel
from edgebed.typed import nearest
from edgebed.wire.settings import Codec
from orchestrator.experiment import Simulation, Surrogate
from orchestrator.fleet.spec.profile import FleetSpec, found_speed
from orchestrator.references.reference import Reference, load_reference
from orchestrator.references.task_costs import check_spread
from orchestrator.references.work_laws import WorkLaws
from orchestrator.runs.data import Prepared
from orchestrator.runs.folder import RunFolder
from orchestrator.runs.request import ExperimentRequest, Watch
from orchestrator.runs.run import start_model
from orchestrator.simulation.costs import CostModel
from orchestrator.simulation.counts import Flops, Operations
from orchestrator.simulation.paper_costs import FlopCosts, OperationCosts, TimedCosts
from orchestrator.simulation.reference_costs import ReferenceCosts
from orchestrator.simulation.server import slots
from orchestrator.simulation.simulation_file import SimulationFile, file_now
from orchestrator.simulation.surrogate import surrogate_costs
from orchestrator.simulation.world import WorldState


def wanted_reference(wanted: Simulation, speed: str, path: Path) -> Reference | None:
    """The reference whose costs a simulation takes: the one that it names, or else the one that real devices would be
    held to. None: its costs are none of a reference.

    Args:
        speed: `host`, or `reference NAME`.
        path: of the experiment file.

    Raises:
        UsageError: there is no such reference.
    """
    cost = wanted.cost or ("" if wanted.as_if is not None else speed)
    name = found_speed(cost, path).partition(" ")[2].strip()
    return load_reference(name) if name else None


def cost_model(
    wanted: Simulation,
    model: StagedModel,
    batch: Batch,
    reference: Reference | None,
    codec: Codec | None = None,
    *,
    spread: bool = False,
) -> CostModel:
    """The cost model of a simulation. Raises UsageError where it cannot count this network."""
    if reference is not None:
        return ReferenceCosts(reference, spread=spread)
    match wanted.cost:
        case "flops":
            return FlopCosts(Flops(model), wanted.device_flops, wanted.server_flops, len(batch[1]), codec)
        case "operations":
            return OperationCosts(Operations(model), wanted.device_flops)
        case _:
            return TimedCosts(WorkLaws(model, batch))


class SimulationRequest(ExperimentRequest, frozen=True):
    """A simulation that is asked for."""

    devices: int | None = None  # number of devices, with the profiles of the fleet in turn; None: those of the fleet
    accelerator: str = "cpu"  # cpu or cuda
    built: bool = False  # the agents have built the model already, as on a fleet that has carried out another run
    # least seconds of wall time between two checkpoints; None: as many as keep them cheap
    checkpoint_s: float | None = None
    file: SimulationFile | None = None  # of the runs that go on; None: all runs are new
    # nothing is trained, and the only method of the experiment has these accuracies, test by test
    learned: Sequence[float] | None = None


class SimulationContext:
    """What the methods of an experiment share.

    Attributes:
        shards: by device.
        built: devices whose agents have built their model; all runs share one standing fleet.
        server_slots: server halves that train at once.
        slot_cpus: CPUs of each, after dilation; 1 where the server has none of its own.
        file: goes into the folder of every run.
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
        wanted = self.experiment.simulation
        self.file = file_now(request.file, request.devices, self.accelerator, request.built)
        if request.file is None:
            reference = wanted_reference(wanted, spec.wanted_speed, request.path)
            self.file = msgspec.structs.replace(self.file, reference=reference, checkpoint_s=request.checkpoint_s)
        self._batch = prepared.sample(self.experiment.training.batch_size)
        self.costs = self._costs(self.build(), wanted.as_if)
        self.dilation = wanted.dilation or 1.0
        self.slot_cpus = 1.0 if spec.server_cpus is None else spec.slot_cpus / self.dilation
        self.server_slots = slots(wanted, len(spec.devices), spec.server_cpus)

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
        if costs.laws is not None:
            for state in self._saved():
                costs.laws.learn(state.laws)
        return costs

    def _new_costs(self, model: StagedModel, wanted: Surrogate | None) -> CostModel:
        """`wanted`: the larger experiment that this one is a surrogate for (`simulation.as_if`)."""
        experiment, known = self.experiment, self.file.reference if wanted is None else None
        check_spread(self.spec.spread, known)
        if wanted is not None:
            samples = [shard.samples for shard in self.shards.values()]
            return surrogate_costs(experiment, wanted, model, samples)
        codec = experiment.training.codec
        return cost_model(experiment.simulation, model, self._batch, known, codec, spread=self.spec.spread)

    def _saved(self) -> Iterator[WorldState]:
        """What the runs of the experiment that have begun left behind."""
        for folder in (*self.request.finished.values(), *self.request.begun.values()):
            if saved := (files := RunFolder(folder)).progress().simulation:
                with files.fitting():
                    state = msgspec.convert(saved, WorldState)
                yield state

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
