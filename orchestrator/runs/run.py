"""One method of an experiment on the standing fleet: from its folder to its report."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import shutil
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import torch

from edgebed.methods.base import Context, Method
from edgebed.models.staged import MODELS, StagedModel, Weights, seeded
from orchestrator.calibration.calibrate import Calibration
from orchestrator.dashboard.tail import refresh
from orchestrator.files.output import keep
from orchestrator.fleet.control.controller import FleetController
from orchestrator.records.recorder import Recorder
from orchestrator.records.types import CutProfiled, RunFinished, RunStarted
from orchestrator.report import write_what_fits
from orchestrator.rounds.driver import RoundDriver
from orchestrator.rounds.loop import Loop, Progress
from orchestrator.rounds.replay import copy_plan, read_replay
from orchestrator.rounds.round_router import RoundRouter
from orchestrator.rounds.settings import round_settings
from orchestrator.runs.data import Prepared
from orchestrator.runs.folder import RunFolder, Saved, Series, resolved
from orchestrator.runs.request import Request, Watch
from orchestrator.training.costs import profile_cuts
from orchestrator.training.server import ServerTrainer


class MethodRun:
    """One method on the standing fleet."""

    def __init__(
        self,
        request: Request,
        series: str,
        place: int,
        controller: FleetController,
        prepared: Prepared,
        method: Method,
        options: dict[str, Any],
        calibration: Calibration,
        watch: Watch,
    ) -> None:
        self._request, self._controller, self._prepared = request, controller, prepared
        self._method, self._options, self._calibration, self._watch = method, options, calibration, watch
        self._experiment = request.experiment
        self._accelerator = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        begun = request.begun.get(place)
        self._resumed = begun is not None
        self.folder = self._new_folder(series, place) if begun is None else self._old_folder(begun)
        self._recorder = Recorder(self.folder.records)
        self._recorder.subscribe(watch.record)

    def _new_folder(self, series: str, place: int) -> RunFolder:
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        name = f"{self._experiment.name}-{self._method.name}-{stamp}-{uuid.uuid4().hex[:4]}"
        folder = RunFolder(self._request.runs / name)
        folder.make(self._resolved(), Series(series, place, self._experiment.methods))
        if self._request.plan is not None:
            copy_plan(self._request.plan / "records.jsonl", folder.plan)
        return folder

    def _old_folder(self, path: Path) -> RunFolder:
        """The folder of a run that is gone on with; its experiment may have more rounds now."""
        folder = RunFolder(path)
        if folder.experiment.read_bytes() != self._resolved():
            keep(folder.experiment, self._resolved())
        return folder

    def _resolved(self) -> bytes:
        return resolved(self._experiment, self._request.path, self._options, self._controller.dilation)

    async def execute(self) -> None:
        """Run to the end, and write summary and report whatever the end is.

        Raises:
            FileError: records or checkpoint could not be kept; the run goes on from the last checkpoint.
        """
        self._watch.run(self._method.name, self.folder.path, self._experiment.training.rounds)
        model = seeded(self._build_model, self._experiment.training.seed)
        saved = self.folder.restore(self._watch.notify) if self._resumed else None
        saved = saved or Saved({k: v.clone() for k, v in model.weights().items()}, Progress(), {})
        await self._controller.reset()
        self._begin(saved.progress)
        why = "interrupted"
        try:
            why = await self._recorder.guard(self._rounds(model, saved))
        except Exception as error:
            why = f"error: {error}"
            raise
        finally:
            await self._conclude(why)
        if self._recorder.failure is not None:
            raise self._recorder.failure

    async def _conclude(self, why: str) -> None:
        """The last record, summary and report; a full disk is told, and hides no earlier error."""
        self._recorder.last(RunFinished(time.monotonic_ns(), why))
        try:
            await self._controller.membership.flush()
        finally:
            self._controller.attach(None, None)
            self._recorder.close()
            write_what_fits(self.folder.path, self._watch.notify)
            refresh(self.folder.path)

    async def _rounds(self, model: StagedModel, saved: Saved) -> str:
        async with contextlib.AsyncExitStack() as stack:
            await self._set_up(model)
            if saved.progress.round:
                self._method.restore(saved.progress.method, saved.tensors)
            driver = RoundRouter(lambda: self._round_driver(stack))
            self._controller.attach(self._recorder.record, driver)
            dilation = self._controller.dilation
            loop = Loop(
                method=self._method,
                driver=driver,
                devices=self._controller,
                training=self._experiment.training,
                environment=self._experiment.environment,
                accelerator=self._accelerator,
                test=self._prepared.test,
                validation=self._prepared.validation,
                save=self._save,
                record=self._recorder.record,
                watch=lambda p, r, s: self._watch.round(self._method.name, p, r, s, dilation),
                replay=read_replay(self.folder.plan) if self.folder.plan.exists() else None,
            )
            return await loop.run(saved.weights, saved.progress)

    def _save(self, weights: Weights, progress: Progress, tensors: Weights) -> None:
        """Records first: after a loss of power no checkpoint may hold a round that the records do not know."""
        self._recorder.sync()
        self.folder.save(weights, progress, tensors)

    def _round_driver(self, stack: contextlib.AsyncExitStack) -> RoundDriver:
        """A driver for one round at a time, with its own server trainer, which `stack` closes."""
        trainer = ServerTrainer(self._accelerator, slots=1)
        stack.push_async_callback(trainer.close)
        training, dilation = self._experiment.training, self._controller.dilation
        return RoundDriver(
            self._controller.port,
            trainer,
            self._recorder.record,
            self._controller.lost,
            round_settings(self.folder.path.name, training, dilation, self._prepared.samples()),
        )

    def _build_model(self) -> StagedModel:
        plugin = MODELS.create(self._experiment.model, "model")
        return plugin.build(self._prepared.input_shape, self._prepared.classes)

    async def _set_up(self, model: StagedModel) -> None:
        """Give the method its context; profile the cuts first where it needs their costs."""
        costs = {}
        training = self._experiment.training
        if self._method.needs_costs:
            self._watch.notify("profiling the cuts")
            costs = await asyncio.to_thread(
                profile_cuts,
                model,
                model.cuts_with_head,
                training.batch_size,
                training.codec,
                training.optimizer,
                self._accelerator,
                batch=self._prepared.sample(training.batch_size),
            )
            for cost in costs.values():
                self._recorder.record(CutProfiled(time.monotonic_ns(), **msgspec.structs.asdict(cost)))
        devices = tuple(self._controller.names)
        self._method.setup(Context(self._experiment.model, model, costs, server_slots=1, devices=devices))

    def _begin(self, progress: Progress) -> None:
        controller, training = self._controller, self._experiment.training
        self._recorder.record(
            RunStarted(
                at_ns=time.monotonic_ns(),
                wall=datetime.now(UTC).isoformat(timespec="seconds"),
                run=self.folder.path.name,
                experiment=self._experiment.name,
                method=self._method.name,
                seed=training.seed,
                backend=controller.fleet.backend,
                enforcement=str(controller.enforcement),
                dilation=controller.dilation,
                calibrated=self._calibration.passed,
                resumed_from=progress.round,
                target_accuracy=training.target_accuracy,
                host=host_facts(),
                devices=controller.infos(),
            )
        )
        for record in controller.facts():
            self._recorder.record(record)
        controller.attach(self._recorder.record, None)


def host_facts() -> dict[str, str]:
    return {
        "cores": str(os.cpu_count()),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "mosquitto": shutil.which("mosquitto") or "",
    }
