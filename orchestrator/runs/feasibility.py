"""Finds settings that are valid one by one and cannot work together, before a fleet starts."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

import msgspec

from edgebed.errors import Mistakes, UsageError, refuse
from edgebed.methods.base import METHODS, Context, Method
from edgebed.models.staged import MODELS, StagedModel
from edgebed.typed import spelled, within
from edgebed.wire.settings import Augment, LearningTask, Privacy
from orchestrator.experiment import Experiment, Overrides, examined
from orchestrator.files.yaml_file import Document, load_yaml
from orchestrator.fleet.spec.profile import BOARD, DeviceSpec, FleetSpec, fleet_of, found_speed, load_profile
from orchestrator.rounds.settings import schedule_of
from orchestrator.runs.data import privacy_of, share_out
from orchestrator.runs.start_weights import begin_with
from orchestrator.scenario.files import listed, load_scenario
from orchestrator.scenario.spec import ScenarioEvent, misfit


def experiment_fleet(experiment: Experiment, path: Path) -> FleetSpec:
    """The fleet of an experiment that was read from `path`, with the CPUs of its server, its speed and its spread.
    Raises UsageError."""
    cpus, spec = None if experiment.server is None else experiment.server.cpus, fleet_of(path, experiment.fleet)
    speed = spec.wanted_speed if experiment.speed is None else found_speed(experiment.speed, path)
    spread = spec.spread if experiment.spread is None else experiment.spread
    return msgspec.structs.replace(spec, server_cpus=cpus, wanted_speed=speed, spread=spread)


def checked(
    path: Path,
    overrides: Overrides | None = None,
    plugins: Sequence[str] = (),
    *,
    everything: bool = False,
    fleet: Callable[[FleetSpec], FleetSpec] = lambda spec: spec,
) -> Experiment:
    """The experiment in a file, with all mistakes of it and of its fleet at once.

    Args:
        plugins: beside those of the file; paths in them start at the current folder.
        fleet: makes the fleet that is meant of the one in the file.
        everything: look whether the data can be divided so, and whether every method works with the model, too.

    Raises:
        UsageError: what is wrong, each with place and hint.
    """
    found, experiment = examined(path, overrides, plugins)
    first, lines = list(found.values()), load_yaml(path)
    if experiment is None:
        refuse(first, path)
    assert experiment is not None
    wrong = {spelled(place) for place in found}
    if first:
        later = _part_mistakes(experiment, path, wrong, fleet, everything=False)
        refuse([*first, *_with_lines(later, lines)], path)
    parts = experiment.parts[:: len(experiment.all_seeds)]
    each = (_part_mistakes(experiment.part(*part), path, wrong, fleet, everything=everything) for part in parts)
    refuse(_with_lines(chain.from_iterable(each), lines), path)
    return experiment


def _part_mistakes(
    experiment: Experiment,
    path: Path,
    wrong: Collection[str],
    fleet: Callable[[FleetSpec], FleetSpec],
    *,
    everything: bool,
) -> Iterator[UsageError]:
    """Those of the fleet, and of settings with it, but where a mistake was found already (`wrong`)."""
    if "fleet" in wrong:
        return
    try:
        spec = fleet(experiment_fleet(experiment, path))
    except UsageError as error:
        yield error
        return
    profiles = {device.name: device.profile.name for device in spec.devices}

    def privacy() -> None:
        with within(str(path)):
            privacy_of(experiment, list(profiles), profiles)

    def methods() -> None:
        _, split, _ = share_out(experiment, list(profiles), path)
        check_methods(experiment, list(profiles), split.task, path)

    for key, check in FLEET_CHECKS.items():
        if not any(place.startswith(key) for place in wrong):
            yield from _refusals(partial(check, experiment, spec, path))
    yield from _refusals(privacy)
    if everything:
        yield from _refusals(methods)


def _refusals(check: Callable[[], None]) -> Sequence[UsageError]:
    try:
        check()
    except UsageError as error:
        return [error]
    return ()


def _with_lines(errors: Iterable[UsageError], document: Document) -> list[UsageError]:
    """Each mistake once (several methods may have one model); those that name a key of the file say its line, too."""
    each = [one for error in errors for one in (error.each if isinstance(error, Mistakes) else (error,))]
    return list({str(error): _with_line(error, document) for error in each}.values())


def _with_line(error: UsageError, document: Document) -> UsageError:
    begin, text = f"{document.path}: ", str(error)
    place = re.match(r"[\w.\[\]]*", text.removeprefix(begin))[0]  # type: ignore[index]  # it matches everything
    if not text.startswith(begin) or place not in document.lines:
        return error
    return type(error)(document.where(place) + text[len(begin + place) :], hint=error.hint)


def check_fleet(experiment: Experiment, spec: FleetSpec, path: Path) -> None:
    """Check that the fleet has enough devices for the quorum, and that all named devices and profiles exist. `path`: of
    the experiment file, for messages. Raises UsageError: with place and hint."""
    for check in FLEET_CHECKS.values():
        check(experiment, spec, path)


def _check_environment(experiment: Experiment, spec: FleetSpec, path: Path) -> None:
    if experiment.environment is not None:
        if spec.unlimited:
            raise UsageError(
                f"{path}: environment: the profiles of real boards cannot be changed ({', '.join(spec.unlimited)})",
                hint="leave `environment` away, or the boards",
            )
        for i, name in enumerate(experiment.environment.profiles):
            load_profile(name, spec.path, f"{path}: environment.profiles[{i}]")


def _check_quorum(experiment: Experiment, spec: FleetSpec, path: Path) -> None:
    training, devices = experiment.training, len(spec.devices)
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


FLEET_CHECKS = {"training.quorum": _check_quorum, "scenario": _check_scenario, "environment": _check_environment}
"""By the key whose value they look at."""


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


def check_methods(experiment: Experiment, devices: Sequence[str], task: LearningTask, path: Path) -> None:
    """Check that the model can be built for what is learned, and that every method works with it on these devices.
    Raises UsageError: with place and hint."""
    refuse(list(_method_mistakes(experiment, devices, task, path)), path)


def _check_part(method: Method, model: StagedModel, experiment: Experiment) -> None:
    """Raises UsageError where the model's `trainable` or `lora` cannot be done."""
    if model.frozen and not method.trains_part:
        can = ", ".join(name for name, cls in METHODS.classes().items() if cls.trains_part)
        raise UsageError(
            "it trains all of a model's weights, or chooses them itself",
            hint=f"leave `trainable` and `lora` away, or choose of: {can}",
        )
    if model.frozen and experiment.simulation.as_if is not None:
        raise UsageError(
            "simulation.as_if counts all weights in every round, and a part of them is trained",
            hint="leave `as_if` away, or `trainable` and `lora`",
        )


def _method_mistakes(
    experiment: Experiment, devices: Sequence[str], task: LearningTask, path: Path
) -> Iterator[UsageError]:
    if experiment.training.augment != Augment() and task.kind != "pictures":
        yield UsageError(f"{path}: training.augment changes pictures; the data are {task.kind}", hint="leave it away")
    if task.vocabulary and any(
        each != Privacy(secret=each.secret) for each in privacy_of(experiment, devices, {}).values()
    ):
        yield UsageError(f"{path}: privacy: features of tokens cannot be hidden", hint="leave `privacy` away")
    models: dict[str, StagedModel] = {}
    for i, options in enumerate(experiment.methods):
        place = f"{path}: methods[{i}]"
        method = METHODS.create(options, place)
        if method.one_answer and task.per_token:
            yield UsageError(
                f"{place}: {method.name} learns one answer for a sample; the data are {task.kind}",
                hint="choose another method, or data with one answer for a sample",
            )
            continue
        spec = method.model_spec(experiment.model)
        plugin, key = MODELS.create(spec, f"{path}: model"), str(spec)
        try:
            if key not in models:
                with within(f"{path}: model"):
                    plugin.check_takes(task)
                    models[key] = plugin.build(task)
                if experiment.weights is not None:
                    begin_with(models[key], path.parent / experiment.weights)
            with within(f"{place}: {method.name} with the model {plugin.name}"):
                _check_part(method, models[key], experiment)
                method.setup(Context(spec, models[key], {}, server_slots=1, devices=tuple(devices)))
                method.check_schedule(schedule_of(experiment.training, experiment.training.optimizer.lr))
        except UsageError as error:
            uncut = models[key].uncut if key in models else ""
            yield UsageError(f"{error}: it cannot be cut: {uncut}", hint=error.hint) if uncut else error
