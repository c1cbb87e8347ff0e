"""Composes simulated runs: the `Run` of a real experiment with a simulated fleet, simulated trainers and a virtual
clock, in one process. The run folder has the same files as that of a real run."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch

from edgebed.datasets.shard import read_shard
from edgebed.errors import UsageError
from edgebed.methods.base import METHODS, Method
from orchestrator.files.output import try_file, try_folder
from orchestrator.fleet.ownership import OwnedFolder
from orchestrator.fleet.profile import DeviceSpec, FleetSpec, fleet_of, load_profile
from orchestrator.runs.data import prepare_data
from orchestrator.runs.feasibility import check_fleet, check_methods
from orchestrator.runs.request import Watch
from orchestrator.runs.run import Platform, Run, RunRequest
from orchestrator.simulation.charging import Charging
from orchestrator.simulation.context import SimulationContext, SimulationRequest
from orchestrator.simulation.fleet import SimulatedFleet
from orchestrator.simulation.pool import HalfPool
from orchestrator.simulation.server import SimulatedTrainer
from orchestrator.simulation.virtual import VirtualLoop, run_virtual


def simulate(request: SimulationRequest, watch: Watch) -> list[Path]:
    """Simulate every method of the experiment; returns the run folders. Raises EdgebedError with cause and hint."""
    experiment = request.experiment
    spec = _sized(fleet_of(request.path, experiment.fleet), request.devices)
    check_fleet(experiment, spec, request.path)
    place = f"{request.path}: methods"
    methods = [METHODS.create(options, f"{place}[{i}]") for i, options in enumerate(experiment.methods)]
    try_folder(request.runs)
    if request.save_calibration is not None:
        try_file(request.save_calibration)
        if not request.calibrate_from:
            raise UsageError("--save-calibration without --calibrate-from", hint="name the real run to calibrate from")
    torch.set_num_threads(1)  # the number of threads may change bits
    profiles = {device.name: device.profile.name for device in spec.devices}
    with OwnedFolder("edgebed-data-") as folder:
        prepared = prepare_data(experiment, list(profiles), folder, profiles, request.path)
        shards = {name: read_shard(path) for name, path in prepared.shards.items()}
    check_methods(experiment, list(profiles), prepared.input_shape, prepared.classes, request.path)
    context = SimulationContext(request, spec, prepared, shards, watch)
    pairs = zip(methods, experiment.methods, strict=True)
    return [run_virtual(partial(_run_method, context, method, options)) for method, options in pairs]


async def _run_method(context: SimulationContext, method: Method, options: dict[str, Any], loop: VirtualLoop) -> Path:
    """One method on a simulated fleet of its own; returns the run's folder."""
    request, experiment, model = context.request, context.experiment, context.build()
    batched, notify = experiment.simulation.batched, context.watch.notify
    halves = HalfPool(model, context.shards, context.accelerator, batched=batched, notify=notify)
    fleet = _fleet(context, halves)
    run = Run(
        RunRequest(experiment, request.path, request.runs, method, options, context.prepared, model),
        _platform(context, fleet, Charging(loop, context.costs, fleet)),
        context.watch,
    )
    await run.execute()
    notify(f"halves: {halves.together} trained together, {halves.alone} alone")
    return run.folder.path


def _fleet(context: SimulationContext, halves: HalfPool) -> SimulatedFleet:
    return SimulatedFleet(
        context.spec,
        context.shards,
        context.costs,
        halves,
        dilation=context.dilation,
        liveness_s=context.experiment.training.liveness_s,
        faults=tuple(context.experiment.simulation.faults),
        resolve=lambda name: load_profile(name, context.spec.path),
        built=context.built,
    )


def _platform(context: SimulationContext, fleet: SimulatedFleet, charging: Charging) -> Platform:
    costs, accelerator = context.costs, context.accelerator
    return Platform(
        fleet=fleet,
        make_trainer=lambda: SimulatedTrainer(
            accelerator, context.server_slots, costs.server_step_s, charging.assignments
        ),
        accelerator=accelerator,
        server_slots=context.server_slots,
        calibrated=costs.kind.startswith("calibrated"),
        host={
            "costs": costs.kind,
            "accelerator": str(accelerator),
            "halves": "batched" if context.experiment.simulation.batched else "one by one",
        },
        known_costs=costs.cut_costs,
        recording=charging.recording,
        mark="-sim",
    )


def _sized(spec: FleetSpec, devices: int | None) -> FleetSpec:
    """The fleet with `devices` devices: its own ones first, then more with their profiles in turn."""
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


__all__ = ["SimulationRequest", "Watch", "simulate"]
