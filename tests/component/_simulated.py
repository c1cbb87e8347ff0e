"""The fleet of `_fleet.py` on a virtual clock: same shards, same methods, costs that are plain numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch

from edgebed.datasets.shard import read_shard
from edgebed.device.pieces import BY_BYTES
from edgebed.methods.base import Method
from edgebed.models.staged import Weights
from edgebed.wire.messages import Assignment
from orchestrator.clock import now_ns
from orchestrator.experiment import Environment, Simulation, Training
from orchestrator.fleet.spec.profile import DeviceSpec, FleetSpec, ProfileSpec
from orchestrator.records.types import Record, RunFinished, RunStarted
from orchestrator.rounds.device_states import DeviceStates
from orchestrator.rounds.driver import RoundDriver
from orchestrator.rounds.driver_pool import DriverPool
from orchestrator.rounds.evaluator import LocalEvaluator
from orchestrator.rounds.loop import Loop
from orchestrator.rounds.progress import Progress
from orchestrator.rounds.scenario_player import ScenarioPlayer
from orchestrator.rounds.settings import QUEUED_UPLOADS, RoundSettings, round_settings
from orchestrator.scenario.agenda import Scenario
from orchestrator.simulation.costs import BatchCost, CostModel
from orchestrator.simulation.fleet import SimulatedFleet
from orchestrator.simulation.link import LinkCost
from orchestrator.simulation.paper_costs import PaperCosts
from orchestrator.simulation.pool import HalfPool
from orchestrator.simulation.server import SimulatedTrainer, slots
from orchestrator.simulation.virtual import VirtualLoop
from tests.all_rounds import run_all
from tests.component._fleet import CPU, SHAPE, WIDE, method, model, start_weights, write_noise_shard
from tests.virtual import run_virtual


class PlainCosts(PaperCosts):
    """A batch costs 0.1 s until its features and 0.3 s after, less where few stages train; a server step 0.05 s, a byte
    8 bits at the rate."""

    kind = "plain"

    def work(self, assignment: Assignment, samples: int) -> BatchCost:
        return BatchCost(0.1, 0.3 * (1 - assignment.train_from / assignment.stages))

    def piece_s(self, assignment: Assignment, kind: str, size: int) -> float:
        return 0.01 if kind in BY_BYTES else super().piece_s(assignment, kind, size)

    def link(self, latency_ms: float, rate_bit_s: int) -> LinkCost:
        return LinkCost(0.001, 8 / rate_bit_s)

    def server_step_s(self, assignment: Assignment, samples: int) -> float:
        return 0.05


class Played:
    """What came of a simulated run."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.saved: list[Weights] = []
        self.together = self.alone = 0

    def of(self, kind: type[Any]) -> list[Any]:
        return [record for record in self.records if isinstance(record, kind)]


def play(
    folder: Path,
    devices: Mapping[str, int],
    spec: Mapping[str, object] | Method,
    wanted: Training,
    *,
    batched: bool = False,
    profiles: Mapping[str, ProfileSpec] | None = None,
    environment: Environment | None = None,
    scenario: Scenario | None = None,
    server_slots: int = 1,
    queued_uploads: int = QUEUED_UPLOADS,
    costs: CostModel | None = None,
) -> Played:
    """One run of devices named in `devices` (name -> samples)."""
    torch.set_num_threads(1)
    played = Played()
    at_once = slots(Simulation(server_slots=server_slots), len(devices), None)
    run_virtual(
        lambda loop: _play(
            loop,
            played,
            folder,
            devices,
            spec,
            wanted,
            batched,
            profiles,
            environment,
            scenario,
            at_once,
            queued_uploads,
            costs or PlainCosts(),
        )
    )
    return played


async def _play(
    loop: VirtualLoop,
    played: Played,
    folder: Path,
    devices: Mapping[str, int],
    spec: Mapping[str, object] | Method,
    wanted: Training,
    batched: bool,
    profiles: Mapping[str, ProfileSpec] | None,
    environment: Environment | None,
    scenario: Scenario | None,
    at_once: int,
    queued_uploads: int,
    costs: CostModel,
) -> None:
    record = played.records.append
    known = profiles or {}
    specs = tuple(DeviceSpec(name, known.get(name, WIDE)) for name in devices)
    for name, samples in devices.items():
        write_noise_shard(folder / f"{name}.safetensors", samples)
    shards = {name: read_shard(folder / f"{name}.safetensors") for name in devices}
    whole = model()
    pool = HalfPool(whole, shards, CPU, batched=batched, notify=lambda text: None)
    fleet = SimulatedFleet(
        FleetSpec("simulated", "local", 0.5, specs, folder / "fleet.yaml"),
        shards,
        costs,
        pool,
        dilation=1.0,
        liveness_s=wanted.liveness_s,
        resolve=lambda name: known[name],
    )
    settings = round_settings("run", wanted, 1.0, {name: shard.samples for name, shard in shards.items()})
    settings = msgspec.structs.replace(
        settings,
        queued_uploads=queued_uploads,
        costs=lambda device, assignment: costs.task_costs(assignment),
        states=DeviceStates(fleet.agent_of),
    )
    trainer = SimulatedTrainer(CPU, at_once, costs)
    driver = DriverPool(
        lambda: trainer, lambda trainer, job: RoundDriver(fleet, trainer, record, fleet.lost, settings, job), fleet
    )
    record(_started(fleet, at_once, settings))
    for fact in fleet.facts():
        record(fact)
    fleet.attach(record)
    player = None
    if scenario is not None:
        named = {device.name: device.profile.name for device in specs}
        player = ScenarioPlayer(scenario, wanted.seed, named, fleet, record)

    def noted(told: Record) -> None:
        record(told)
        if player is not None:
            player.on_record(told)

    rounds = Loop(
        method=method(spec, wanted.rounds),
        pool=driver,
        devices=fleet,
        training=wanted,
        environment=environment,
        evaluator=LocalEvaluator(CPU),
        test=(torch.zeros(2, *SHAPE), torch.tensor([0, 1])),
        save=lambda weights, *_: played.saved.append({k: v.clone() for k, v in weights.items()}),
        record=noted,
        watch=lambda progress, result, seconds: None,
        script=player,
    )
    await run_all(rounds, start_weights(), Progress())
    if player is not None:
        await player.close()
    fleet.end_work()
    record(RunFinished(now_ns(), "rounds done", "finished"))
    played.together, played.alone = pool.together, pool.alone


def _started(fleet: SimulatedFleet, at_once: int, settings: RoundSettings) -> RunStarted:
    return RunStarted(
        at_ns=now_ns(),
        wall="",
        run="run",
        experiment="plain",
        method="",
        seed=0,
        backend="simulated",
        enforcement="simulated",
        dilation=1.0,
        calibrated=False,
        resumed_from=0,
        target_accuracy=1.0,
        devices=fleet.infos(),
        server_slots=at_once,
        queued_uploads=settings.queued_uploads,
    )
