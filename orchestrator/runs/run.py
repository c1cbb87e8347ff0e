"""One method of an experiment, from its folder to its report: on a real fleet, or on a simulated one."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Coroutine, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from edgebed.errors import UsageError
from edgebed.methods.base import Context, CutCost, Method
from edgebed.models.staged import MODELS, StagedModel, Weights, seeded
from edgebed.plugin_code import read_plugins
from orchestrator.clock import now_ns
from orchestrator.experiment import Experiment
from orchestrator.files.output import keep
from orchestrator.files.plugged import codes_of
from orchestrator.records.recorder import Recorder
from orchestrator.records.types import SIMULATED, CutProfiled, Ending, HostIndex, RunFinished, RunStarted, TurnEnded
from orchestrator.report import write_what_fits
from orchestrator.rounds.device_states import DeviceStates
from orchestrator.rounds.driver import RoundDriver
from orchestrator.rounds.driver_pool import DriverPool
from orchestrator.rounds.frozen_base import FrozenBase
from orchestrator.rounds.job import RoundJob
from orchestrator.rounds.loop import Loop
from orchestrator.rounds.progress import Progress
from orchestrator.rounds.replay import copy_plan, read_replay
from orchestrator.rounds.scenario_player import ScenarioPlayer
from orchestrator.rounds.settings import round_settings
from orchestrator.runs.cut_costs import cut_costs, recorded_costs
from orchestrator.runs.data import Prepared
from orchestrator.runs.folder import RunFolder, Saved, resolved
from orchestrator.runs.platform import Platform, RunRequest, T
from orchestrator.runs.request import Watch
from orchestrator.runs.start_weights import begin_with
from orchestrator.runs.turns import Turn
from orchestrator.scenario.files import load_scenario
from orchestrator.training.server import HalfTrainer


class MethodRun:
    """One method on one platform. `folder`: made, with the resolved experiment in it, by the constructor."""

    def __init__(self, request: RunRequest, platform: Platform, watch: Watch) -> None:
        self._request, self._platform, self._watch = request, platform, watch
        self._experiment, self._method, self._fleet = request.whole.experiment, request.method, platform.fleet
        self.folder = self._new_folder() if request.begun is None else self._old_folder(request.begun)
        self._saved = None if request.begun is None else self.folder.restore(watch.notify)
        self._profiled: dict[int, CutCost] = {}  # of a simulation that goes on
        self._recorder = self._open_records()
        for listener in (watch.record, *watch.listeners):
            self._recorder.subscribe(partial(listener, self.folder.path))
        self._record = platform.recording(self._recorder.record)
        training, samples = self._experiment.training, request.prepared.samples()
        settings = round_settings(self.folder.path.name, training, self._fleet.dilation, samples)
        indices = {name: self._fleet.spec.speed.index_of(name) for name in self._fleet.names}
        self._settings = msgspec.structs.replace(
            settings,
            costs=platform.costs,
            indices=indices,
            each_piece=request.each_piece,
            earned=self._fleet.earned,
            limits=self._fleet.limits,
            states=DeviceStates(self._fleet.agent_of),
            base=FrozenBase(request.model),
        )
        self._to_close = contextlib.AsyncExitStack()
        self._open, self._seen_ns = False, 0
        self._turn: Turn | None = None  # the last one

    @property
    def _goes_on(self) -> bool:
        """Whether this is a simulation that goes on to the same records."""
        return self._saved is not None and bool(self._saved.progress.simulation)

    def _open_records(self) -> Recorder:
        """Those of a simulation that goes on are cut off where it was saved."""
        path, simulated = self.folder.records, self._fleet.backend_name == SIMULATED
        if not simulated or self._request.begun is None:
            return Recorder(path)
        self._profiled = recorded_costs(path)
        if self._saved is None or not self._saved.progress.simulation:
            return Recorder(path, keep=0)
        with self.folder.fitting():
            self._platform.world.restore(self._saved.progress.simulation)
        return Recorder(path, self._saved.progress.simulation["records"], self._platform.world.first_record)

    def _new_folder(self) -> RunFolder:
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        begin = f"{self._experiment.name}-{self._method.name}{self._platform.mark}"
        folder = RunFolder(self._request.whole.runs / f"{begin}-{stamp}-{uuid.uuid4().hex[:4]}")
        plugins = codes_of(self._experiment.plugins)
        folder.make(self._resolved(), self._request.series, self._request.simulation, plugins)
        if self._request.plan is not None:
            copy_plan(self._request.plan / "records.jsonl", folder.plan)
        return folder

    def _old_folder(self, path: Path) -> RunFolder:
        """The folder of a run that goes on; its experiment may have more rounds now."""
        folder = RunFolder(path)
        had, now = read_plugins(folder.plugins), codes_of(self._experiment.plugins)
        if {code.name: code.sha256 for code in had} != {code.name: code.sha256 for code in now}:
            raise UsageError(
                f"the run {path} began with other code of its plug-ins than there is now",
                hint=f"edgebed run --resume goes on with its own copies, in {folder.plugins}; or run it anew",
            )
        if folder.experiment.read_bytes() != self._resolved():
            keep(folder.experiment, self._resolved())
        return folder

    def _resolved(self) -> bytes:
        options = self._experiment.methods[self._request.place]
        return resolved(self._experiment, self._request.whole.path, options, self._fleet.dilation)

    # ---- the run, step by step; a step that fails or is cancelled ends the run before it raises ----

    async def execute(self) -> None:
        """Run to the end, and write summary and report however it ends.

        Raises:
            FileError: records or checkpoint could not be kept; the run can go on from the last checkpoint.
        """
        await self.begin()
        self._fleet.attach(self._record)
        while not self.over:
            await self._or_end(self._loop.step())
        await self.finish()

    async def begin(self) -> None:
        """Write the first records, and prepare the method. Afterwards the fleet is free. Raises as `execute`."""
        self._watch.run(self._method.name, self.folder.path, self._experiment.training.rounds)
        saved = self._saved or Saved({k: v.clone() for k, v in self._request.model.weights().items()}, Progress(), {})
        self._open = True
        if not self._goes_on:
            await self._fleet.reset()
            self._write_start(saved.progress, await self._host_index())
        self._seen_ns = now_ns()
        await self._or_end(self._prepare(saved))

    @property
    def next_round(self) -> int:
        """Number of the round that comes next, from 0."""
        return self._loop.progress.round

    @property
    def over(self) -> bool:
        """Whether no round is left."""
        return self._loop.over

    async def turn(self, turn: Turn) -> None:
        """The next round, on a fleet that other runs have before and after it. Raises as `execute`."""
        await self._or_end(self._take_turn(turn))

    async def finish(self) -> None:
        """No round is left: the final test, the last record, summary and report. Raises as `execute`."""
        why = await self._or_end(self._loop.end())
        await self._conclude(why, "finished", await self._or_end(self._host_index()))
        if self._recorder.failure is not None:
            raise self._recorder.failure

    async def interrupt(self) -> None:
        """End the run before its last round, if it has begun and not ended."""
        if self._open:
            await self._conclude("interrupted", "interrupted")

    async def _or_end(self, step: Coroutine[Any, Any, T]) -> T:
        """The result of a step. If it fails, the run ends before this raises the error."""
        try:
            return await self._recorder.guard(self._platform.guard(step))
        except Exception as error:
            await self._conclude(f"error: {error}", "failed")
            raise
        except BaseException:
            await self._conclude("interrupted", "interrupted")
            raise
        finally:
            step.close()  # where a guard was cancelled before it began the step

    async def _take_turn(self, turn: Turn) -> None:
        """One round between those of other runs. Before it, the records get what happened to the fleet meanwhile."""
        for record in self._fleet.facts(self._seen_ns):
            self._record(record)
        self._fleet.attach(self._record)
        self._turn = turn
        await self._loop.step()
        await self._end_turn(turn)

    async def _end_turn(self, turn: Turn) -> None:
        if self._player is not None:
            await self._player.pause()
        await self._fleet.rest(self._loop.left_out)
        end_ns = now_ns()
        await self._fleet.flush()
        self._record(TurnEnded(end_ns, self.next_round - 1, turn.block, turn.position, turn.of))
        self._fleet.attach(None)
        self._seen_ns = now_ns()

    async def _host_index(self) -> HostIndex | None:
        """While no device works."""
        measure = self._platform.host_index
        return None if measure is None else await asyncio.to_thread(measure)

    def _write_start(self, progress: Progress, index: HostIndex | None) -> None:
        """The first records: what runs, on which devices, and what is true of them now."""
        fleet, training = self._fleet, self._experiment.training
        self._record(
            RunStarted(
                at_ns=now_ns(),
                wall=datetime.now(UTC).isoformat(timespec="seconds"),
                run=self.folder.path.name,
                experiment=self._experiment.name,
                method=self._method.name,
                seed=training.seed,
                backend=fleet.backend_name,
                enforcement=str(fleet.enforcement),
                dilation=fleet.dilation,
                calibrated=self._platform.calibrated,
                resumed_from=progress.round,
                target_accuracy=training.target_accuracy,
                series=self._request.whole.series,
                setting=dict(self._request.whole.setting),
                interleaved=self._request.interleaved,
                host=dict(self._platform.host),
                devices=fleet.infos(),
                server_slots=self._platform.server_slots,
                grain=fleet.grain,
                server_cpus=fleet.spec.server_cpus,
                held_server_cpus=self._platform.held_server_cpus,
                dilation_by=fleet.dilation_by,
                queued_uploads=self._settings.queued_uploads,
                speed=self._platform.speed,
                demand=fleet.spec.speed.demand,
                head_room=fleet.spec.head_room,
                spread=fleet.spec.spread,
                host_index=index,
            )
        )
        for record in fleet.facts():
            self._record(record)
        fleet.attach(self._record)

    async def _conclude(self, why: str, ending: Ending, index: HostIndex | None = None) -> None:
        """The last record, summary and report. A disk that is full here is told, and hides no earlier error."""
        self._open = False
        await self._to_close.aclose()
        self._fleet.end_work()
        self._recorder.last(RunFinished(now_ns(), why, ending, index))
        try:
            await self._fleet.flush()
        finally:
            self._fleet.attach(None)
            self._recorder.close()
            write_what_fits(self.folder.path, self._watch.notify)

    async def _prepare(self, saved: Saved) -> None:
        """Everything up to the first round."""
        await self._set_up()
        if saved.progress.round:
            with self.folder.fitting():
                self._method.restore(saved.progress.method, saved.tensors)
                self._restore_states(saved.progress.simulation.get("states", {}))
                for device, (agent, names) in saved.progress.simulation.get("frozen", {}).items():
                    self._settings.base.kept[device] = agent, names
        self._player = self._make_player(saved.progress)
        self._loop = self._make_loop()
        with self.folder.fitting():
            self._loop.start(saved.weights, saved.progress, saved.in_hand)
        self._platform.world.open(lambda: self._recorder.size, self._player)
        if "turn" in saved.progress.simulation:
            self._fleet.attach(self._record)
            self._turn = msgspec.convert(saved.progress.simulation["turn"], Turn)
            await self._loop.go_on()
            await self._end_turn(self._turn)
        self._fleet.attach(None)

    def _restore_states(self, held: Mapping[str, tuple[str, str]]) -> None:
        """What simulated devices had kept, from the server's copies; those of real devices go down with their tasks."""
        copies = {device: self._method.state_copy(device) for device in held}
        kept = {device: (held[device][0], copy) for device, copy in copies.items() if copy}
        self._platform.world.put_states(self.folder.path.name, kept)
        for device in kept:
            self._settings.states.took(device, *held[device])

    def _make_player(self, progress: Progress) -> ScenarioPlayer | None:
        """Plays the experiment's scenario, where it has one."""
        if self._experiment.scenario is None:
            return None
        player = ScenarioPlayer(
            load_scenario(self._experiment.scenario, self._request.whole.path),
            self._experiment.training.seed,
            {device.name: device.profile.name for device in self._fleet.spec.devices},
            self._fleet,
            self._record,
            elapsed_s=progress.elapsed_s,
            rounds=progress.round,
        )
        self._recorder.subscribe(player.on_record)
        self._to_close.push_async_callback(player.close)
        return player

    def _make_loop(self) -> Loop:
        method, dilation, prepared = self._method.name, self._fleet.dilation, self._request.prepared
        return Loop(
            method=self._method,
            pool=DriverPool(self._make_trainer, self._make_driver, self._fleet),
            devices=self._fleet,
            training=self._experiment.training,
            environment=self._experiment.environment,
            evaluator=self._platform.evaluator,
            test=prepared.test,
            validation=prepared.validation,
            save=self._save,
            record=self._record,
            watch=lambda progress, result, seconds: self._watch.round(method, progress, result, seconds, dilation),
            merged=partial(self._watch.merged, self.folder.path),
            replay=read_replay(self.folder.plan) if self.folder.plan.exists() else None,
            script=self._player,
            world=self._platform.world,
        )

    def _save(self, weights: Weights, progress: Progress, tensors: Weights, in_hand: Weights) -> None:
        """Records first: after a loss of power no checkpoint may hold a round that the records lack."""
        start_s = time.monotonic()
        if progress.simulation:
            progress.simulation["states"] = self._settings.states.held
            progress.simulation["frozen"] = self._settings.base.kept
        if progress.simulation and self._turn is not None:
            progress.simulation["turn"] = msgspec.to_builtins(self._turn)
        self._recorder.sync()
        self.folder.save(weights, progress, tensors, in_hand)
        self._platform.world.wrote(time.monotonic() - start_s)

    def _make_trainer(self) -> HalfTrainer:
        """A server trainer for one round at a time, which is closed at the end of the run."""
        trainer = self._platform.make_trainer()
        self._to_close.push_async_callback(trainer.close)
        return trainer

    def _make_driver(self, trainer: HalfTrainer, job: RoundJob) -> RoundDriver:
        return RoundDriver(self._fleet.endpoint, trainer, self._record, self._fleet.lost, self._settings, job)

    async def _set_up(self) -> None:
        """Give the method its context; first the costs of the cuts, where it needs them."""
        model, costs = self._request.model, dict[int, CutCost]()
        if self._method.needs_costs:
            self._watch.notify("profiling the cuts")
            costs = self._profiled or await cut_costs(self._platform, self._request)
            for cost in costs.values() if not self._goes_on else ():
                self._record(CutProfiled(now_ns(), **msgspec.structs.asdict(cost)))
        slots, devices = self._platform.server_slots, tuple(self._fleet.names)
        spec, rounds = self._method.model_spec(self._experiment.model), self._experiment.training.rounds
        self._method.setup(Context(spec, model, costs, slots, devices, rounds))
        await self._platform.prepare(self._method.context)


def start_model(experiment: Experiment, prepared: Prepared, path: Path, method: Method | None = None) -> StagedModel:
    """The experiment's model, as `method` wants it, with the weights of its file, and of the seed. `path`: of the
    experiment file."""
    spec = experiment.model if method is None else method.model_spec(experiment.model)
    plugin = MODELS.create(spec, f"{path}: model")
    model = seeded(lambda: plugin.build(prepared.task), experiment.training.seed)
    if experiment.weights is not None:
        begin_with(model, path.parent / experiment.weights)
    return model
