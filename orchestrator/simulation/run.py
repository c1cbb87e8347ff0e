"""Runs an experiment in simulation: the same method, plan, halves, merge and round code as a real run, one process, a
virtual clock. Its run folder reads like any other."""

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
from orchestrator.fleet.profile import DeviceSpec, FleetSpec, fleet_of
from orchestrator.runs.data import prepare_data
from orchestrator.runs.feasibility import check_fleet, check_methods
from orchestrator.simulation.context import SimulationContext, SimulationRequest, Watch
from orchestrator.simulation.simulated_run import SimulatedRun
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
    torch.set_num_threads(1)  # halves are small, and their bits must not depend on the host
    profiles = {device.name: device.profile.name for device in spec.devices}
    with OwnedFolder("edgebed-data-") as folder:
        prepared = prepare_data(experiment, list(profiles), folder, profiles, request.path)
        shards = {name: read_shard(path) for name, path in prepared.shards.items()}
    check_methods(experiment, list(profiles), prepared.input_shape, prepared.classes, request.path)
    stage = SimulationContext(request, spec, prepared, shards, watch)
    pairs = zip(methods, experiment.methods, strict=True)
    return [run_virtual(partial(_play, stage, method, options)) for method, options in pairs]


async def _play(stage: SimulationContext, method: Method, options: dict[str, Any], loop: VirtualLoop) -> Path:
    return await SimulatedRun(stage, method, options, loop).run()


def _sized(spec: FleetSpec, devices: int | None) -> FleetSpec:
    """The fleet with so many devices: its own ones first, then their profiles in turn."""
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
