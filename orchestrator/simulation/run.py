"""Runs an experiment in simulation: the same method, plan, halves, merge and round code as a real run, one process, a
virtual clock. Its run folder reads like any other."""

from __future__ import annotations

import asyncio
import tempfile
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import msgspec
import torch

from edgebed.datasets.shard import Shard, read_shard
from edgebed.methods.base import METHODS, Context, Method
from edgebed.models.staged import MODELS, ModelPlugin, StagedModel, seeded
from edgebed.wire.messages import Assignment
from orchestrator.data import Prepared, prepare_data
from orchestrator.experiment import Experiment
from orchestrator.fleet.profile import FleetSpec, load_fleet, load_profile
from orchestrator.records.facts import sort
from orchestrator.records.reader import read
from orchestrator.records.recorder import Recorder
from orchestrator.records.types import CutProfiled, OrchestratorPhase, Record, RoundStarted, RunFinished, RunStarted
from orchestrator.report import write_results
from orchestrator.rounds.clock import now_ns
from orchestrator.rounds.driver import RoundDriver, RoundResult, RoundSettings
from orchestrator.rounds.lanes import Lanes
from orchestrator.rounds.loop import Loop, Progress
from orchestrator.run_folder import RunFolder, resolved
from orchestrator.simulation.as_if import as_if_costs
from orchestrator.simulation.calibration import Calibration, save_calibration
from orchestrator.simulation.costs import CostModel
from orchestrator.simulation.fitting import fit
from orchestrator.simulation.fleet import SimulatedFleet
from orchestrator.simulation.models import cost_model
from orchestrator.simulation.pool import HalfPool
from orchestrator.simulation.reference import Reference
from orchestrator.simulation.server import SimulatedTrainer
from orchestrator.simulation.virtual import VirtualLoop, run_virtual
from orchestrator.training.costs import profile_cuts

ENFORCEMENT = "simulated"
"""What records say of who holds the limits."""


class Watch(Protocol):
    """What a simulation tells the terminal (`session.Watch`)."""

    say: Callable[[str], None]

    def run(self, method: str, folder: Path, rounds: int) -> None: ...
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


def simulate(request: SimulationRequest, watch: Watch) -> list[Path]:
    """Simulate every method of the experiment; returns the run folders. Raises EdgebedError with cause and cure."""
    experiment = request.experiment
    spec = _sized(load_fleet((request.path.parent / experiment.fleet).resolve()), request.devices)
    place = f"{request.path}: methods"
    methods = [METHODS.create(options, f"{place}[{i}]") for i, options in enumerate(experiment.methods)]
    request.runs.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # halves are small, and their bits must not depend on the host
    with tempfile.TemporaryDirectory(prefix="edgebed-data-") as folder:
        prepared = prepare_data(experiment, [device.name for device in spec.devices], Path(folder))
        shards = {name: read_shard(path) for name, path in prepared.shards.items()}
    stage = _Stage(request, spec, prepared, shards, watch)
    return [stage.play(method, options) for method, options in zip(methods, experiment.methods, strict=True)]


def _sized(spec: FleetSpec, devices: int | None) -> FleetSpec:
    """The fleet with so many devices: its own ones over and over, numbered."""
    if devices is None:
        return spec
    made = tuple(
        msgspec.structs.replace(device, name=f"{device.profile.name}-{number // len(spec.devices) + 1}")
        if number >= len(spec.devices)
        else device
        for number in range(devices)
        for device in (spec.devices[number % len(spec.devices)],)
    )
    return msgspec.structs.replace(spec, devices=made)


class _Stage:
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
        self.accelerator = torch.device(request.accelerator)
        self.plugin: ModelPlugin = MODELS.create(self.experiment.model, f"{request.path}: model")
        batch = prepared.sample(self.experiment.training.batch_size)
        model = self.build()
        made = self._calibrate(Reference(model, batch)) if request.calibrate_from else None
        self.costs: CostModel = self._as_if(model) or cost_model(
            self.experiment.simulation, request.path, self.plugin, model, batch, made
        )
        asked = self.experiment.simulation.dilation
        self.dilation = asked if asked is not None else self.costs.dilation

    def _as_if(self, model: StagedModel) -> CostModel | None:
        """The costs of the larger experiment, where this one stands for one."""
        wanted = self.experiment.simulation.as_if
        samples = sum(shard.samples for shard in self.shards.values())
        return None if wanted is None else as_if_costs(self.experiment, wanted, model, samples)

    def _calibrate(self, reference: Reference) -> Calibration:
        """From the runs that the request names; kept as a file where it says so."""
        request = self.request
        self.watch.say(f"calibrating from {len(request.calibrate_from)} runs")
        made = fit([sort(read(folder / "records.jsonl")) for folder in request.calibrate_from], reference)
        if request.save_calibration is not None:
            save_calibration(made, request.save_calibration)
        return made

    def build(self) -> StagedModel:
        return seeded(
            lambda: self.plugin.build(self.prepared.input_shape, self.prepared.classes), self.experiment.training.seed
        )

    def play(self, method: Method, options: dict[str, Any]) -> Path:
        return run_virtual(lambda loop: _Play(self, method, options, loop).run())


class _Play:
    """One method, on one virtual clock."""

    def __init__(self, stage: _Stage, method: Method, options: dict[str, Any], loop: VirtualLoop) -> None:
        self._stage, self._method, self._options, self._loop = stage, method, options, loop
        self._experiment = stage.experiment
        self._model = stage.build()
        simulation = self._experiment.simulation
        self._halves = HalfPool(
            self._model, stage.shards, stage.accelerator, batched=simulation.batched, say=stage.watch.say
        )

    async def run(self) -> Path:
        stage, training = self._stage, self._experiment.training
        folder = self._new_folder()
        recorder = Recorder(folder.records)
        stage.watch.run(self._method.name, folder.path, training.rounds)
        fleet = SimulatedFleet(
            stage.spec,
            stage.shards,
            stage.costs,
            self._halves,
            recorder.record,
            dilation=stage.dilation,
            liveness_s=training.liveness_s,
            faults=tuple(self._experiment.simulation.faults),
            resolve=lambda name: load_profile(name, stage.spec.path),
        )
        why = "interrupted"
        try:
            why = await self._rounds(folder, recorder, fleet)
        except Exception as error:
            why = f"error: {error}"
            raise
        finally:
            fleet.close()
            recorder.record(RunFinished(now_ns(), why))
            recorder.close()
            write_results(folder.path)
        stage.watch.say(f"halves: {self._halves.together} trained together, {self._halves.alone} alone")
        return folder.path

    async def _rounds(self, folder: RunFolder, recorder: Recorder, fleet: SimulatedFleet) -> str:
        stage, training = self._stage, self._experiment.training
        slots = self._experiment.simulation.server_slots
        assignments: dict[str, Assignment] = {}
        self._begin(recorder.record, folder, fleet)
        self._set_up(recorder.record, slots)

        def record(record: Record) -> None:
            if isinstance(record, RoundStarted):
                assignments.update(record.assignments)
                fleet.begin_round(record.round)
                planned_s = stage.costs.orchestrator_s("plan", 0)
                self._loop.advance(planned_s)
                record = msgspec.structs.replace(record, planned_s=planned_s)
            recorder.record(record)
            if isinstance(record, OrchestratorPhase) and record.name == "plan":
                self._loop.advance(stage.costs.orchestrator_s("dispatch", 0))

        deadline_s = None if training.deadline_s is None else training.deadline_s * stage.dilation
        settings = RoundSettings(folder.path.name, deadline_s, training.quorum, training.liveness_s)
        trainers: list[SimulatedTrainer] = []

        def make() -> RoundDriver:
            trainers.append(SimulatedTrainer(stage.accelerator, slots, stage.costs.server_step_s, assignments))
            return RoundDriver(fleet, trainers[-1], record, fleet.lost, settings)

        fleet.driver = driver = Lanes(make)
        self._loop.charge = self._charge
        loop = Loop(
            method=self._method,
            driver=driver,
            devices=fleet,
            training=training,
            environment=self._experiment.environment,
            accelerator=stage.accelerator,
            test=(stage.prepared.test_x, stage.prepared.test_y),
            save=folder.save,
            record=record,
            watch=lambda p, r, s: stage.watch.round(self._method.name, p, r, s, stage.dilation),
        )
        beating = asyncio.ensure_future(fleet.beat(training.liveness_s / 3))
        try:
            return await loop.run({k: v.clone() for k, v in self._model.weights().items()}, Progress())
        finally:
            beating.cancel()
            for trainer in trainers:
                await trainer.close()

    def _charge(self, call: Callable[..., Any], args: tuple[Any, ...]) -> float:
        size = len(args[0]) if args and isinstance(args[0], bytes | bytearray | memoryview) else 0
        return self._stage.costs.orchestrator_s(getattr(call, "__name__", ""), size)

    def _set_up(self, record: Callable[[Record], None], slots: int) -> None:
        """Give the method its context; where it needs costs of cuts they are measured on this host."""
        stage, training, costs = self._stage, self._experiment.training, {}
        if self._method.needs_costs:
            stage.watch.say("profiling the cuts")
            costs = stage.costs.cut_costs(self._model) or profile_cuts(
                self._model,
                self._model.cuts_with_head,
                training.batch_size,
                training.codec,
                training.optimizer,
                stage.accelerator,
                batch=stage.prepared.sample(training.batch_size),
            )
            for cost in costs.values():
                record(CutProfiled(now_ns(), **msgspec.structs.asdict(cost)))
        self._method.setup(Context(self._experiment.model, self._model, costs, server_slots=slots))

    def _begin(self, record: Callable[[Record], None], folder: RunFolder, fleet: SimulatedFleet) -> None:
        stage, training = self._stage, self._experiment.training
        record(
            RunStarted(
                at_ns=now_ns(),
                wall=datetime.now(UTC).isoformat(timespec="seconds"),
                run=folder.path.name,
                experiment=self._experiment.name,
                method=self._method.name,
                seed=training.seed,
                backend=ENFORCEMENT,
                enforcement=ENFORCEMENT,
                dilation=stage.dilation,
                calibrated=stage.costs.kind.startswith("calibrated"),
                resumed_from=0,
                target_accuracy=training.target_accuracy,
                host={
                    "costs": stage.costs.kind,
                    "accelerator": str(stage.accelerator),
                    "halves": "batched" if self._experiment.simulation.batched else "one by one",
                },
                devices=fleet.infos(),
            )
        )
        fleet.announce()

    def _new_folder(self) -> RunFolder:
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        name = f"{self._experiment.name}-{self._method.name}-sim-{stamp}-{uuid.uuid4().hex[:4]}"
        folder = RunFolder(self._stage.request.runs / name)
        folder.path.mkdir(parents=True)
        folder.experiment.write_bytes(
            resolved(self._experiment, self._stage.request.path, self._options, self._stage.dilation)
        )
        return folder
