"""One method of a simulated experiment on one virtual clock: the round code of a real run, a simulated fleet."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from edgebed.methods.base import Context, Method
from edgebed.wire.messages import Assignment
from orchestrator.fleet.profile import load_profile
from orchestrator.records.recorder import Recorder
from orchestrator.records.types import CutProfiled, OrchestratorPhase, Record, RoundStarted, RunFinished, RunStarted
from orchestrator.report import write_what_fits
from orchestrator.rounds.driver import RoundDriver
from orchestrator.rounds.event_loop import now_ns
from orchestrator.rounds.loop import Loop, Progress
from orchestrator.rounds.round_router import RoundRouter
from orchestrator.rounds.settings import round_settings
from orchestrator.runs.folder import RunFolder, resolved
from orchestrator.simulation.context import SimulationContext
from orchestrator.simulation.fleet import HEARD_SHARE, SimulatedFleet
from orchestrator.simulation.pool import HalfPool
from orchestrator.simulation.server import SimulatedTrainer
from orchestrator.simulation.virtual import VirtualLoop
from orchestrator.training.costs import profile_cuts

ENFORCEMENT = "simulated"
"""What records say of who holds the limits."""


Write = Callable[[Record], None]


class SimulatedRun:
    """One method, on one virtual clock."""

    def __init__(self, stage: SimulationContext, method: Method, options: dict[str, Any], loop: VirtualLoop) -> None:
        self._stage, self._method, self._options, self._loop = stage, method, options, loop
        self._experiment = stage.experiment
        self._model = stage.build()
        self._assignments: dict[str, Assignment] = {}
        simulation = self._experiment.simulation
        self._halves = HalfPool(
            self._model, stage.shards, stage.accelerator, batched=simulation.batched, notify=stage.watch.notify
        )

    async def run(self) -> Path:
        stage, training = self._stage, self._experiment.training
        folder = self._new_folder()
        recorder = Recorder(folder.records)
        recorder.subscribe(stage.watch.record)
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
            built=stage.built,
        )
        why = "interrupted"
        try:
            why = await recorder.guard(self._rounds(folder, recorder, fleet))
        except Exception as error:
            why = f"error: {error}"
            raise
        finally:
            fleet.close()
            recorder.last(RunFinished(now_ns(), why))
            recorder.close()
            write_what_fits(folder.path, stage.watch.notify)
        stage.watch.notify(f"halves: {self._halves.together} trained together, {self._halves.alone} alone")
        return folder.path

    async def _rounds(self, folder: RunFolder, recorder: Recorder, fleet: SimulatedFleet) -> str:
        stage, training = self._stage, self._experiment.training
        self._begin(recorder.record, folder, fleet)
        self._set_up(recorder.record)
        self._loop.charge = stage.costs.orchestrator_s
        record = self._recording(recorder, fleet)
        async with contextlib.AsyncExitStack() as stack:
            fleet.driver = driver = RoundRouter(lambda: self._round_driver(folder, fleet, record, stack))
            beating = asyncio.ensure_future(fleet.beat(training.liveness_s * HEARD_SHARE))
            stack.callback(beating.cancel)
            loop = Loop(
                method=self._method,
                driver=driver,
                devices=fleet,
                training=training,
                environment=self._experiment.environment,
                accelerator=stage.accelerator,
                test=stage.prepared.test,
                validation=stage.prepared.validation,
                save=folder.save,
                record=record,
                watch=lambda p, r, s: stage.watch.round(self._method.name, p, r, s, stage.dilation),
            )
            return await loop.run({k: v.clone() for k, v in self._model.weights().items()}, Progress())

    def _round_driver(
        self, folder: RunFolder, fleet: SimulatedFleet, record: Write, stack: contextlib.AsyncExitStack
    ) -> RoundDriver:
        """A driver for one round at a time, with its own server trainer, as in a real run."""
        stage, training = self._stage, self._experiment.training
        trainer = SimulatedTrainer(stage.accelerator, stage.server_slots, stage.costs.server_step_s, self._assignments)
        stack.push_async_callback(trainer.close)
        samples = {name: shard.samples for name, shard in stage.shards.items()}
        settings = round_settings(folder.path.name, training, stage.dilation, samples)
        return RoundDriver(fleet, trainer, record, fleet.lost, settings)

    def _recording(self, recorder: Recorder, fleet: SimulatedFleet) -> Write:
        """Records a round's events. Planning and dispatching compute in the loop's own thread: they take time here."""
        costs = self._stage.costs

        def record(record: Record) -> None:
            if isinstance(record, RoundStarted):
                for assignment in record.assignments.values():
                    costs.check(assignment)
                self._assignments.update(record.assignments)
                fleet.begin_round(record.round)
                planned_s = costs.orchestrator_s("plan", 0)
                self._loop.advance(planned_s)
                record = msgspec.structs.replace(record, planned_s=planned_s)
            recorder.record(record)
            if isinstance(record, OrchestratorPhase) and record.name == "plan":
                self._loop.advance(costs.orchestrator_s("dispatch", 0))

        return record

    def _set_up(self, record: Write) -> None:
        """Give the method its context; where it needs costs of cuts they are measured on this host."""
        stage, training, costs = self._stage, self._experiment.training, {}
        if self._method.needs_costs:
            stage.watch.notify("profiling the cuts")
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
        self._method.setup(
            Context(
                self._experiment.model,
                self._model,
                costs,
                server_slots=stage.server_slots,
                devices=tuple(device.name for device in stage.spec.devices),
            )
        )

    def _begin(self, record: Write, folder: RunFolder, fleet: SimulatedFleet) -> None:
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
        folder.make(resolved(self._experiment, self._stage.request.path, self._options, self._stage.dilation))
        return folder
