"""Composes simulated runs: the `MethodRun` of a real experiment, with simulated fleet and trainers, and a virtual
clock, in one process. The run folder has the same files as that of a real run."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import torch

from edgebed.datasets.shard import read_shard
from edgebed.methods.base import METHODS, Method
from edgebed.models.staged import StagedModel
from edgebed.pacing import HOST
from edgebed.wire.messages import Assignment, Cost
from orchestrator.files.output import try_folder
from orchestrator.files.plugged import changes, codes_of
from orchestrator.fleet.ownership import OwnedFolder
from orchestrator.fleet.spec.profile import DeviceSpec, FleetSpec, load_profile
from orchestrator.rounds.evaluator import LocalEvaluator
from orchestrator.runs.data import prepare_data
from orchestrator.runs.feasibility import check_fleet, check_methods, experiment_fleet, simulated_fleet
from orchestrator.runs.interleave import actions, groups
from orchestrator.runs.platform import Platform, RunRequest, profile_here
from orchestrator.runs.request import Request, Watch, parts
from orchestrator.runs.run import MethodRun
from orchestrator.simulation.context import SimulationContext, SimulationRequest, accelerator_named
from orchestrator.simulation.costs import CostModel
from orchestrator.simulation.fleet import SimulatedFleet
from orchestrator.simulation.learned import IdleHalves, IdleTrainer, KnownEvaluator
from orchestrator.simulation.older_keys import in_new_words
from orchestrator.simulation.pool import HalfPool
from orchestrator.simulation.server import SimulatedTrainer
from orchestrator.simulation.simulation_file import read_file
from orchestrator.simulation.virtual import VirtualLoop, virtual_runner
from orchestrator.simulation.world import SimulatedWorld


def resumed(request: Request) -> SimulationRequest:
    """The simulation that goes on, from what `resume_request` gave. Raises UsageError."""
    runs = {**request.finished, **request.begun}
    file = read_file(next(iter(runs.values())))
    return SimulationRequest(
        request.experiment,
        request.path,
        request.runs,
        devices=file.devices,
        accelerator=file.accelerator,
        built=file.built,
        checkpoint_s=file.checkpoint_s,
        file=file,
        series=request.series,
        begun=request.begun,
        finished=request.finished,
    )


def simulate(request: SimulationRequest, watch: Watch) -> list[Path]:
    """Simulate every method of the experiment; returns the run folders. Raises EdgebedError with cause and hint."""
    request = msgspec.structs.replace(request, experiment=in_new_words(request.experiment, request.path, watch.notify))
    return [folder for part in parts(request) for folder in part.over or _simulate_part(part, watch)]


def _simulate_part(request: SimulationRequest, watch: Watch) -> list[Path]:
    if request.setting and request.file is not None:  # a setting may have costs of its own
        own = [*request.finished.values(), *request.begun.values()]
        request = msgspec.structs.replace(request, file=read_file(own[0]) if own else None)
    if request.part_text:
        watch.notify(request.part_text)
    experiment = request.experiment
    spec = sized(experiment_fleet(experiment, request.path), request.devices)
    check_fleet(experiment, spec, request.path)
    place = f"{request.path}: methods"
    methods = [METHODS.create(options, f"{place}[{i}]") for i, options in enumerate(experiment.methods)]
    for line in changes(codes_of(experiment.plugins)):
        watch.notify(line)
    try_folder(request.runs)
    torch.set_num_threads(1)  # the number of threads may change bits
    profiles = {device.name: device.profile.name for device in spec.devices}
    with OwnedFolder("edgebed-data-") as folder:
        prepared = prepare_data(experiment, list(profiles), folder, profiles, request.path)
        accelerator = accelerator_named(request.accelerator)
        shards = {name: read_shard(path, accelerator) for name, path in prepared.shards.items()}
    check_methods(experiment, list(profiles), prepared.task, request.path)
    context = SimulationContext(request, spec, prepared, shards, watch)
    folders = dict(request.finished)
    for group in groups(methods, experiment.interleave, experiment.training.seed):
        left = {place: methods[place] for place in group if place not in request.finished}
        folders |= _simulate_group(context, left, group)
    return [folders[place] for place in range(len(methods))]


def _simulate_group(context: SimulationContext, methods: Mapping[int, Method], group: Sequence[int]) -> dict[int, Path]:
    """Simulate one method, or several whose rounds alternate; returns the runs' folders. Keys are places in the
    experiment.

    Each method has a fleet and a clock of its own, which stand still while another one plays. So the order changes no
    result.

    Args:
        methods: that have not finished in an earlier session.
        group: places of all methods of the group.
    """
    with contextlib.ExitStack() as stack:
        runners = {place: stack.enter_context(virtual_runner()) for place in methods}
        made = {
            place: runner.run(_make_run(context, place, methods[place], len(group) > 1))
            for place, runner in runners.items()
        }
        runs = {group.index(place): (runners[place], run) for place, (run, _) in made.items()}
        _play(runs, len(group), context.experiment.training.seed, f"s{context.request.series[:8]}")
    for _, halves in made.values():
        context.watch.notify(f"halves: {halves.together} trained together, {halves.alone} alone")
    return {place: run.folder.path for place, (run, _) in made.items()}


def _play(runs: Mapping[int, tuple[asyncio.Runner, MethodRun]], count: int, seed: int, fleet: str) -> None:
    """As `interleave.play`, with a clock for each run."""
    if count == 1:
        for runner, run in runs.values():
            runner.run(run.execute())
        return
    try:
        for number, action in actions({number: run for number, (_, run) in runs.items()}, count, seed, fleet):
            runs[number][0].run(action)
    except BaseException:
        for runner, run in runs.values():
            runner.run(run.interrupt())
        raise


async def _make_run(
    context: SimulationContext, place: int, method: Method, interleaved: bool
) -> tuple[MethodRun, HalfPool]:
    """One method on a simulated fleet of its own, on the running loop's clock."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    request, model = context.request, context.build(method)
    costs = context.costs_of(method)
    halves = _halves(context, model, method)
    fleet = _fleet(context, costs, halves)
    if interleaved:  # as one after the other: the first method's tasks build the models, whatever the order
        context.built = set(context.shards)
    wanted = RunRequest(
        request,
        place,
        method,
        context.prepared,
        model,
        interleaved=interleaved,
        simulation=msgspec.json.encode(context.file),
    )
    world = SimulatedWorld(loop, fleet, costs.laws, request.checkpoint_s)
    return MethodRun(wanted, _platform(context, costs, fleet, world), context.watch), halves


def _halves(context: SimulationContext, model: StagedModel, method: Method) -> HalfPool:
    shards, accelerator, notify = context.shards, context.accelerator, context.watch.notify
    if context.request.learned is not None:
        return HalfPool(model, shards, accelerator, batched=False, notify=notify, begin=IdleHalves(method).begin)
    batched, memory_bytes = context.experiment.simulation.batched, context.file.memory_bytes
    return HalfPool(model, shards, accelerator, batched=batched, notify=notify, memory_bytes=memory_bytes)


def _fleet(context: SimulationContext, costs: CostModel, halves: HalfPool) -> SimulatedFleet:
    return SimulatedFleet(
        context.spec,
        context.shards,
        costs,
        halves,
        dilation=context.dilation,
        liveness_s=context.experiment.training.liveness_s * context.dilation,
        resolve=lambda name: load_profile(name, context.spec.path),
        built=context.built,
        grain=context.experiment.grain,
    )


def _platform(context: SimulationContext, costs: CostModel, fleet: SimulatedFleet, world: SimulatedWorld) -> Platform:
    accelerator, learned = context.accelerator, context.request.learned
    trainer = SimulatedTrainer if learned is None else IdleTrainer

    def task_costs(device: str, assignment: Assignment) -> dict[str, Cost]:
        return costs.task_costs(msgspec.structs.replace(assignment, cpus=fleet.cpus[device]))

    return Platform(
        fleet=fleet,
        make_trainer=lambda: trainer(
            accelerator,
            context.server_slots,
            costs,
            context.slot_cpus,
            context.experiment.simulation.server_time,
        ),
        evaluator=LocalEvaluator(accelerator) if learned is None else KnownEvaluator(accelerator, learned),
        profile=profile_here(accelerator),
        server_slots=context.server_slots,
        calibrated=costs.speed != HOST,
        host={
            "costs": costs.kind,
            "accelerator": str(accelerator),
            "halves": "batched" if context.experiment.simulation.batched else "one by one",
        },
        known_costs=costs.cut_costs,
        costs=task_costs,
        held_server=costs.held_server,
        speed=costs.speed,
        mark="-sim",
        world=world,
    )


def sized(real: FleetSpec, devices: int | None) -> FleetSpec:
    """The fleet for a simulation, with `devices` devices: its own ones first, then more with their profiles in turn.
    Raises UsageError."""
    spec = simulated_fleet(real)
    if devices is None:
        return spec
    made, names = list(spec.devices[:devices]), {device.name for device in spec.devices}
    numbers: Counter[str] = Counter()
    for number in range(len(made), devices):
        profile = spec.devices[number % len(spec.devices)].profile
        while not numbers[profile.name] or f"{profile.name}-{numbers[profile.name]}" in names:
            numbers[profile.name] += 1
        name = f"{profile.name}-{numbers[profile.name]}"
        names.add(name)
        made.append(DeviceSpec(name, profile))
    return msgspec.structs.replace(spec, devices=tuple(made))


__all__ = ["SimulationRequest", "Watch", "resumed", "simulate"]
