"""Finds settings that are valid one by one and cannot work together, before a fleet starts. Reads no files but the
profiles, scenario and traces that an experiment names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from edgebed.errors import UsageError
from edgebed.methods.base import METHODS, Context
from edgebed.models.staged import MODELS, StagedModel
from edgebed.typed import within
from orchestrator.experiment import Experiment
from orchestrator.fleet.spec.profile import BOARD, DeviceSpec, FleetSpec, fleet_of, found_speed, load_profile
from orchestrator.scenario.files import listed, load_scenario
from orchestrator.scenario.spec import ScenarioEvent, misfit


def experiment_fleet(experiment: Experiment, path: Path) -> FleetSpec:
    """The fleet of an experiment that was read from `path`, with the CPUs of its server, its speed and its spread.
    Raises UsageError."""
    cpus, spec = None if experiment.server is None else experiment.server.cpus, fleet_of(path, experiment.fleet)
    speed = spec.wanted_speed if experiment.speed is None else found_speed(experiment.speed, path)
    spread = spec.spread if experiment.spread is None else experiment.spread
    return msgspec.structs.replace(spec, server_cpus=cpus, wanted_speed=speed, spread=spread)


def check_fleet(experiment: Experiment, spec: FleetSpec, path: Path) -> None:
    """Check that the fleet has enough devices for the quorum, and that all named devices and profiles exist.

    Args:
        path: of the experiment file, for messages.

    Raises:
        UsageError: with place and hint.
    """
    _check_quorum(experiment, len(spec.devices), path)
    _check_scenario(experiment, spec, path)
    if experiment.environment is not None:
        if spec.unlimited:
            raise UsageError(
                f"{path}: environment: the profiles of real boards cannot be changed ({', '.join(spec.unlimited)})",
                hint="leave `environment` away, or the boards",
            )
        for i, name in enumerate(experiment.environment.profiles):
            load_profile(name, spec.path, f"{path}: environment.profiles[{i}]")


def _check_quorum(experiment: Experiment, devices: int, path: Path) -> None:
    training = experiment.training
    drawn = min(devices, max(1, int(training.sample * devices + 0.5)))
    if training.quorum > drawn:
        of = f"{devices} devices" if drawn == devices else f"{drawn} of {devices} devices (training.sample)"
        raise UsageError(
            f"{path}: training.quorum is {training.quorum}; a round has {of}, so every round would be void",
            hint=f"write a number from 1 to {drawn}" + ("" if drawn == devices else ", or raise training.sample"),
        )


def _check_scenario(experiment: Experiment, spec: FleetSpec, path: Path) -> None:
    if experiment.scenario is None:
        return
    found = listed(experiment.scenario, path)
    profiles = {device.name: device.profile.name for device in spec.devices}
    boards = {device.name: profiles[device.name] for device in spec.boards}
    unlimited = {name: profiles[name] for name in spec.unlimited}
    for i, event in enumerate(found.events):
        held = event.kind in ("limits", "trace")  # a board that limits itself can be given other limits
        _check_boards(event, unlimited if held else boards, found.where(f"[{i}]"))
        if (wrong := misfit(event, profiles, experiment.training.rounds)) is not None:
            key, message, hint = wrong
            raise UsageError(f"{found.where(f'[{i}].{key}')}: {message}", hint=hint)
        if isinstance(event.limits, str):
            load_profile(event.limits, spec.path, found.where(f"[{i}].limits"))
    load_scenario(experiment.scenario, path)


def _check_boards(event: ScenarioEvent, boards: Mapping[str, str], place: str) -> None:
    """What a real board (profile by name) cannot do is refused for the boards that an event names or may draw."""
    if event.kind in ("leave", "return") or not boards:
        return
    what = {
        "limits": "its limits cannot be changed",
        "trace": "it follows no trace",
        "compete": "nothing competes there",
    }
    why = what.get(event.kind, f"it cannot {event.kind}")
    hint = "a board can `leave` and `return`; name devices of this host for the rest"
    if named := [name for name, profile in boards.items() if name in event.named_devices or profile == event.profile]:
        raise UsageError(f"{place}: {named[0]} is a real board: {why}", hint=hint)
    if event.share is not None:
        raise UsageError(f"{place}: this may fall on the real board {min(boards)}: {why}", hint=hint)


def simulated_fleet(spec: FleetSpec) -> FleetSpec:
    """The fleet for a simulation: each board as a device with the limits of its profile. Raises UsageError."""
    unknown = [device.name for device in spec.boards if device.profile.name == BOARD.name]
    if unknown:
        raise UsageError(
            f"{spec.path}: {unknown[0]} is a real board without a profile, so nothing is known to simulate",
            hint="write a `profile` beside the `board`; `edgebed boards measure` makes one",
        )
    return msgspec.structs.replace(spec, devices=tuple(_limited(device) for device in spec.devices))


def _limited(device: DeviceSpec) -> DeviceSpec:
    limits = msgspec.structs.replace(device.profile.limits, unlimited=False)
    return DeviceSpec(device.name, msgspec.structs.replace(device.profile, limits=limits))


def check_methods(
    experiment: Experiment, devices: Sequence[str], input_shape: tuple[int, ...], classes: int, path: Path
) -> None:
    """Check that the model can be built for these samples, and that every method works with it on these devices.

    Raises:
        UsageError: with place and hint.
    """
    models: dict[str, StagedModel] = {}
    for i, options in enumerate(experiment.methods):
        place = f"{path}: methods[{i}]"
        method = METHODS.create(options, place)
        spec = method.model_spec(experiment.model)
        plugin, key = MODELS.create(spec, f"{path}: model"), str(spec)
        if key not in models:
            with within(f"{path}: model"):
                models[key] = plugin.build(input_shape, classes)
        with within(f"{place}: {method.name} with the model {plugin.name}"):
            method.setup(Context(spec, models[key], {}, server_slots=1, devices=tuple(devices)))
