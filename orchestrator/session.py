"""The composition root: the only place that joins real parts. A standing fleet, and the runs on it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import shutil
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import torch

from edgebed.datasets.shard import write_idle_shard
from edgebed.errors import CalibrationError, UsageError
from edgebed.link.mqtt import Address, MqttLink
from edgebed.link.transfer import Port
from edgebed.methods.base import METHODS, Context, Method
from edgebed.models.staged import MODELS, StagedModel, seeded
from edgebed.wire.messages import Control
from edgebed.wire.topics import ORCHESTRATOR, Topics
from orchestrator.broker import Broker, open_broker
from orchestrator.calibration import Calibration, calibrate
from orchestrator.dashboard.follow import refresh
from orchestrator.data import Prepared, prepare_data
from orchestrator.experiment import Experiment, convert
from orchestrator.feasible import check_fleet, check_methods
from orchestrator.fleet.backends import open_backend
from orchestrator.fleet.environment import dilation_over
from orchestrator.fleet.host import usable_cores
from orchestrator.fleet.profile import FleetSpec, dilation_of, fleet_of, load_profile
from orchestrator.fleet.temporary import OwnedFolder
from orchestrator.records.failures import failure_line
from orchestrator.records.recorder import Recorder
from orchestrator.records.types import CutProfiled, Record, RunFinished, RunStarted
from orchestrator.report import write_results
from orchestrator.roster import Roster
from orchestrator.rounds.driver import RoundDriver, RoundResult
from orchestrator.rounds.lanes import Lanes
from orchestrator.rounds.loop import Loop, Progress
from orchestrator.rounds.settings import round_settings
from orchestrator.run_folder import RunFolder, Saved, backend_of, resolved
from orchestrator.standing import Standing
from orchestrator.training.costs import profile_cuts
from orchestrator.training.server import ServerTrainer
from orchestrator.yaml_file import load_yaml

JOIN_TIMEOUT_S = 180.0
Say = Callable[[str], None]
"""Tells the person at the terminal what is going on, one line at a time."""


def quiet(line: str) -> None:
    """A Say that says nothing."""


@contextlib.asynccontextmanager
async def standing_fleet(
    spec: FleetSpec,
    *,
    backend: str | None = None,
    dilation: str | float = "auto",
    broker_url: str | None = None,
    shards: Mapping[str, Path] | None = None,
    heartbeat_s: float = 5.0,
    say: Say = quiet,
) -> AsyncIterator[Standing]:
    """A fleet whose agents have joined and whose limits are on; everything is removed at the end.

    Raises:
        CapacityError, FleetError, LimitError, LinkError: with cause and cure.
    """
    factor = dilation_of(spec, dilation, usable_cores())
    fleet_id = f"f{uuid.uuid4().hex[:8]}"
    async with contextlib.AsyncExitStack() as stack:
        folder = stack.enter_context(OwnedFolder(f"edgebed-{fleet_id}-"))
        fleet = open_backend(spec, backend or spec.backend, fleet_id, say)
        stack.push_async_callback(fleet.close)
        say(f"preparing {len(spec.devices)} devices ({fleet.backend}, limits held by {fleet.enforcement})")
        addresses = await fleet.prepare()
        broker = await stack.enter_async_context(open_broker(addresses, broker_url))
        standing = Standing(fleet_id, spec, fleet, factor, heartbeat_s, lambda name: load_profile(name, spec.path))
        await _connect(standing, broker, stack)
        standing.broker = broker
        access = {name: broker.access(fleet.host_of(name)) for name in standing.names}
        await fleet.start(access, shards or _idle_shards(standing.names, folder))
        say(f"waiting for {len(standing.names)} agents to join over MQTT ({broker.kind})")
        await standing.roster.wait_joined(JOIN_TIMEOUT_S)
        for name in standing.names:
            await standing.put_on_limits(name, "start")
        say(f"limits are on; dilation {factor:.3g}")
        yield standing


async def _connect(standing: Standing, broker: Broker, stack: contextlib.AsyncExitStack) -> None:
    """Open the orchestrator's two connections, and join port, roster and fleet to each other."""
    access = broker.access("127.0.0.1")
    address = Address(access.host, access.port, access.username, access.password)
    client = f"{standing.fleet_id}-{ORCHESTRATOR}"
    control, data = MqttLink(address, f"{client}-control"), MqttLink(address, f"{client}-data")
    standing.port = Port(
        ORCHESTRATOR,
        Topics(standing.fleet_id),
        control,
        data,
        deliver=standing.deliver,
        admit=standing.admit,
        on_control=lambda peer, message: standing.roster.on_control(peer, message),
        on_progress=standing.progress,
        known=standing.knows,
        on_dropped=standing.dropped,
    )
    standing.control = control
    standing.roster = Roster(standing.names, _say_over(standing.port), standing.record)
    standing.roster.listen(standing.on_device)
    standing.fleet.on_exit(standing.on_exit)
    standing.port.start()
    for link in (control, data):
        await link.open()
        stack.push_async_callback(link.close)
    stack.push_async_callback(standing.port.close)
    stack.push_async_callback(standing.close)


def _say_over(port: Port) -> Callable[[str, Control], None]:
    return port.control


def _idle_shards(names: list[str], folder: Path) -> dict[str, Path]:
    """Shards for a fleet that stands without a run: each device has a file of its own, of two samples."""
    shards = {name: folder / f"{name}.safetensors" for name in names}
    for path in shards.values():
        write_idle_shard(path)
    return shards


# ---- runs ----


class Request(msgspec.Struct, frozen=True):
    """What the command line asks for."""

    experiment: Experiment
    path: Path  # of the experiment file: paths in it are relative to its folder
    runs: Path
    backend: str | None = None
    broker_url: str | None = None
    allow_uncalibrated: bool = False
    resume: Path | None = None


class Watch:
    """What a run tells the terminal. The default says a line per round, and one per device that fails."""

    def __init__(self, say: Say) -> None:
        self.say = say

    def run(self, method: str, folder: Path, rounds: int) -> None:
        self.say(f"run {folder.name}: {method}")

    def record(self, record: Record) -> None:
        """Every record, as it is written. Must return at once: the run waits for it."""
        line = failure_line(record)
        if line is not None:
            self.say(line)

    def round(self, method: str, progress: Progress, result: RoundResult, seconds: float, dilation: float) -> None:
        self.say(
            f"{method} round {result.round + 1:3d}: {seconds / dilation:7.2f} s, "
            f"accuracy {progress.accuracy:6.1%} after {progress.elapsed_s / dilation:8.1f} s, "
            f"{len(result.contributions)} merged"
        )


async def run_experiment(request: Request, watch: Watch) -> list[Path]:
    """Run every method of an experiment, one after the other on the same standing fleet; returns the run folders."""
    experiment = request.experiment
    spec = fleet_of(request.path, experiment.fleet)
    check_fleet(experiment, spec, request.path)
    request.runs.mkdir(parents=True, exist_ok=True)
    with OwnedFolder("edgebed-data-") as shards:
        profiles = {device.name: device.profile.name for device in spec.devices}
        prepared = prepare_data(experiment, list(profiles), shards, profiles, request.path)
        watch.say(prepared.describe())
        check_methods(experiment, list(profiles), prepared.input_shape, prepared.classes, request.path)
        async with standing_fleet(
            spec,
            backend=request.backend,
            dilation=_dilation(experiment, spec),
            broker_url=request.broker_url,
            shards=prepared.shards,
            heartbeat_s=experiment.training.heartbeat_s,
            say=watch.say,
        ) as standing:
            calibration = await calibrate_fleet(standing, request.allow_uncalibrated, watch.say)
            return await run_methods(request, standing, prepared, calibration, watch)


def _dilation(experiment: Experiment, spec: FleetSpec) -> float:
    """One factor for all rounds of the experiment, whatever profiles they bring."""
    return dilation_over(
        spec,
        experiment.environment,
        lambda name: load_profile(name, spec.path),
        experiment.training.seed,
        experiment.training.rounds,
        experiment.dilation,
        usable_cores(),
    )


async def run_methods(
    request: Request, standing: Standing, prepared: Prepared, calibration: Calibration, watch: Watch
) -> list[Path]:
    """Run every method of the experiment in turn on a fleet that stands already; returns the run folders."""
    place = f"{request.path}: methods"
    methods = [METHODS.create(spec, f"{place}[{i}]") for i, spec in enumerate(request.experiment.methods)]
    standing.labels = prepared.label_counts
    folders = []
    for method, options in zip(methods, request.experiment.methods, strict=True):
        run = _Run(request, standing, prepared, method, options, calibration, watch)
        folders.append(run.folder.path)
        await run.execute()
    return folders


async def calibrate_fleet(standing: Standing, allow_uncalibrated: bool, say: Say) -> Calibration:
    """The short calibration before every run. Raises CalibrationError naming what does not hold."""
    say("calibrating")
    result = await calibrate(standing.fleet, standing.limits, standing.prober, short=True, on_row=standing.record)
    failed = [row for row in result.rows if row.judged and not row.passed]
    if not result.passed and not allow_uncalibrated:
        worst = "; ".join(
            f"{r.device} {r.quantity} {r.condition}: {r.error:+.1%} {r.cause}".strip() for r in failed[:5]
        )
        raise CalibrationError(
            f"the limits do not hold on {len({r.device for r in failed})} devices: {worst}",
            cure="see `edgebed calibrate`; --allow-uncalibrated runs all the same and marks every output",
        )
    say(f"calibration: {'passed' if result.passed else 'FAILED, allowed'}")
    return result


class _Run:
    """One method on the standing fleet."""

    def __init__(
        self,
        request: Request,
        standing: Standing,
        prepared: Prepared,
        method: Method,
        options: dict[str, Any],
        calibration: Calibration,
        watch: Watch,
    ) -> None:
        self._request, self._standing, self._prepared = request, standing, prepared
        self._method, self._options, self._calibration, self._watch = method, options, calibration, watch
        self._experiment = request.experiment
        self._accelerator = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.folder = RunFolder(request.resume) if request.resume else self._new_folder()
        self._recorder = Recorder(self.folder.records)
        self._recorder.subscribe(watch.record)

    def _new_folder(self) -> RunFolder:
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        name = f"{self._experiment.name}-{self._method.name}-{stamp}-{uuid.uuid4().hex[:4]}"
        folder = RunFolder(self._request.runs / name)
        folder.path.mkdir(parents=True)
        folder.experiment.write_bytes(
            resolved(self._experiment, self._request.path, self._options, self._standing.dilation)
        )
        return folder

    async def execute(self) -> None:
        """Run to the end, and write summary and report whatever the end is."""
        self._watch.run(self._method.name, self.folder.path, self._experiment.training.rounds)
        model = seeded(self._build_model, self._experiment.training.seed)
        saved = self.folder.restore() if self._request.resume else None
        saved = saved or Saved({k: v.clone() for k, v in model.weights().items()}, Progress(), {})
        await self._standing.reset()
        self._begin(saved.progress)
        why = "interrupted"
        try:
            why = await self._rounds(model, saved)
        except Exception as error:
            why = f"error: {error}"
            raise
        finally:
            self._recorder.record(RunFinished(time.monotonic_ns(), why))
            try:
                await self._standing.roster.flush()
            finally:  # also when a second Ctrl-C does not let the devices finish speaking
                self._standing.attach(None, None)
                self._recorder.close()
                write_results(self.folder.path)
                refresh(self.folder.path)

    async def _rounds(self, model: StagedModel, saved: Saved) -> str:
        async with contextlib.AsyncExitStack() as stack:
            await self._set_up(model)
            if saved.progress.round:
                self._method.restore(saved.progress.method, saved.tensors)
            driver = Lanes(lambda: self._round_driver(stack))
            self._standing.attach(self._recorder.record, driver)
            dilation = self._standing.dilation
            loop = Loop(
                method=self._method,
                driver=driver,
                devices=self._standing,
                training=self._experiment.training,
                environment=self._experiment.environment,
                accelerator=self._accelerator,
                test=self._prepared.test,
                validation=self._prepared.validation,
                save=self.folder.save,
                record=self._recorder.record,
                watch=lambda p, r, s: self._watch.round(self._method.name, p, r, s, dilation),
            )
            return await loop.run(saved.weights, saved.progress)

    def _round_driver(self, stack: contextlib.AsyncExitStack) -> RoundDriver:
        """A driver for one round at a time, with its own server trainer, which `stack` closes."""
        trainer = ServerTrainer(self._accelerator, slots=1)
        stack.push_async_callback(trainer.close)
        training, dilation = self._experiment.training, self._standing.dilation
        return RoundDriver(
            self._standing.port,
            trainer,
            self._recorder.record,
            self._standing.lost,
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
            self._watch.say("profiling the cuts")
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
        devices = tuple(self._standing.names)
        self._method.setup(Context(self._experiment.model, model, costs, server_slots=1, devices=devices))

    def _begin(self, progress: Progress) -> None:
        standing, training = self._standing, self._experiment.training
        self._recorder.record(
            RunStarted(
                at_ns=time.monotonic_ns(),
                wall=datetime.now(UTC).isoformat(timespec="seconds"),
                run=self.folder.path.name,
                experiment=self._experiment.name,
                method=self._method.name,
                seed=training.seed,
                backend=standing.fleet.backend,
                enforcement=str(standing.enforcement),
                dilation=standing.dilation,
                calibrated=self._calibration.passed,
                resumed_from=progress.round,
                target_accuracy=training.target_accuracy,
                host=host_facts(),
                devices=standing.infos(),
            )
        )
        for record in standing.facts():
            self._recorder.record(record)
        standing.attach(self._recorder.record, None)


def resume_request(folder: Path, runs: Path, **options: Any) -> Request:
    """The request that goes on with the run in `folder`. Raises UsageError where there is none."""
    files = RunFolder(folder)
    if not files.experiment.is_file() or not files.records.is_file():
        raise UsageError(
            f"{folder} holds no run", cure="give the folder of a run: it holds experiment.yaml and records.jsonl"
        )
    experiment = convert(load_yaml(files.experiment), Experiment, files.experiment)
    options["backend"] = options.get("backend") or backend_of(files)
    return Request(experiment, files.experiment.resolve(), runs, resume=folder, **options)


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


__all__ = ["Record", "Request", "RunFolder", "Watch", "resume_request", "run_experiment", "standing_fleet"]
