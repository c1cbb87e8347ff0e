"""What `--resume` continues, real or simulated: the runs of the experiment, and the settings that may be changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from edgebed.datasets.shard import sha256_of
from edgebed.errors import UsageError
from orchestrator.experiment import MOST_PARTS, Experiment, Overrides, Training, load
from orchestrator.files.yaml_file import convert, load_yaml
from orchestrator.records.types import SIMULATED
from orchestrator.rounds.progress import ROUNDED_S, Progress
from orchestrator.runs.folder import RunFolder, Series, backend_of
from orchestrator.runs.request import Request

CHANGEABLE = (
    "training.rounds",
    "training.budget_s",
    "training.target_accuracy",
    "training.stop_at_target",
    "training.deadline_s",
    "training.round_ceiling_s",
    "training.quorum",
    "training.liveness_s",
    "training.heartbeat_s",
)
"""Keys that may be changed: how long the run is, and how long it waits for devices. The trained weights depend on all
others."""

SIMULATION_CHANGEABLE = ("training.rounds", "training.budget_s", "training.stop_at_target")
"""The same of a simulation, which goes on to the same records."""


def refuse_beside_resume(*given: object) -> None:
    """Raises UsageError where anything is given that the folder of a run that goes on tells itself."""
    if any(given):
        raise UsageError(
            "resume takes the experiment, its methods and its fleet from the run's folder",
            hint="give it alone, with overrides (--set) where the run is to be extended",
        )


def resume_request(folder: Path, overrides: Overrides | None = None) -> Request:
    """The request that continues the whole experiment of the run in `folder`.

    Args:
        overrides: of `CHANGEABLE` keys.

    Raises:
        UsageError: there is no run, a key may not be changed, or nothing is left to do.
    """
    files = RunFolder(folder)
    if not files.experiment.is_file() or not files.records.is_file():
        raise UsageError(
            f"{folder} holds no run", hint="give the folder of a run: it holds experiment.yaml and records.jsonl"
        )
    had = backend_of(files)
    if had == SIMULATED and not files.simulation.exists():
        raise UsageError(
            f"{folder.name} is a simulation of an earlier version, which cannot go on",
            hint="run `edgebed simulate` again",
        )
    before = convert(load_yaml(files.experiment), Experiment, files.experiment)
    after = load(files.experiment, overrides)
    series = files.read_series() or Series("", 0, after.methods)
    allowed = CHANGEABLE if had != SIMULATED else SIMULATION_CHANGEABLE
    _check_changes(before, after, [key for key in allowed if key not in series.sweep])
    after = msgspec.structs.replace(
        after,
        methods=series.methods,
        seeds=series.seeds or None,
        sweep=series.sweep or None,
        dilation=after.dilation if series.dilation is None else series.dilation,
    )
    if after.count_parts() > MOST_PARTS:
        raise UsageError(
            f"{files.series} names {after.count_parts()} settings and seeds, above {MOST_PARTS}",
            hint="no run of Edgebed has written this",
        )
    members, count = dict(_members(files, series)), len(after.methods)
    trainings = [after.part(*each).training for each in after.parts]
    finished = {place: each.path for place, each in members.items() if is_finished(each, trainings[place // count])}
    if len(finished) == count * len(trainings):
        reached = [_reached(each.progress(), trainings[place // count]) for place, each in members.items()]
        key = "rounds" if after.training.budget_s is None else "budget_s"
        raise UsageError(
            f"{folder.name} is finished: {'; '.join(dict.fromkeys(reached))}",
            hint=f"--resume {folder.name} --set training.{key}={2 * getattr(after.training, key):g} extends it"
            + (", with training.stop_at_target=false beyond its target" if after.training.stop_at_target else ""),
        )
    return Request(
        after,
        Path(series.path) if series.path else files.experiment.resolve(),
        files.path.resolve().parent,
        backend=had,
        series=series.id,
        begun={place: each.path for place, each in members.items() if place not in finished},
        finished=finished,
    )


def dilation_of(request: Request) -> str | float:
    """What the experiment says, or the dilation of the runs of this part that there are."""
    begun = next(iter({**request.begun, **request.finished}.values()), None)
    if begun is None:
        return request.experiment.dilation
    path = RunFolder(begun).experiment
    return convert(load_yaml(path), Experiment, path).dilation


def is_finished(files: RunFolder, training: Training) -> bool:
    """Whether a run has ended, and has no rounds or seconds left under these settings."""
    progress = files.progress()
    reached = training.stop_at_target and progress.accuracy >= training.target_accuracy
    return files.ending() == "finished" and (progress.round >= training.rounds or reached or _spent(progress, training))


def _spent(run: Progress, training: Training) -> bool:
    return training.budget_s is not None and run.spent_s >= training.budget_s - ROUNDED_S


def _members(files: RunFolder, series: Series) -> Iterator[tuple[int, RunFolder]]:
    """The runs of the experiment that have begun, with their methods' places. `files` comes last, so it wins for its
    place. Raises UsageError: as `_check_weights`."""
    for path in sorted(files.path.resolve().parent.glob("*/series.json")) if series.id else []:
        other = RunFolder(path.parent)
        found = other.read_series()
        if found is not None and found.id == series.id and other.records.is_file():
            _check_weights(other)
            yield found.place, other
    _check_weights(files)
    yield series.place, files


def _check_weights(files: RunFolder) -> None:
    """Raises UsageError where the file whose weights a run began with is another one now."""
    series = files.read_series()
    if series is None or not series.weights:
        return
    path = convert(load_yaml(files.experiment), Experiment, files.experiment).weights
    try:
        now = sha256_of(Path(path or ""))
    except OSError:
        now = "no file"
    if now != series.weights:
        raise UsageError(
            f"{files.path.name} began with the weights of {path}: SHA-256 {series.weights[:16]}, now {now[:16]}",
            hint="put that file back, or run the experiment anew",
        )


def _check_changes(before: Experiment, after: Experiment, allowed: Sequence[str]) -> None:
    changed = list(_differences(msgspec.to_builtins(before), msgspec.to_builtins(after)))
    refused = [key for key in changed if key not in allowed]
    if refused:
        raise UsageError(
            f"--set {refused[0]}: it cannot be changed in a resumed run, because the trained weights depend on it",
            hint=f"change {', '.join(allowed)}; for anything else start a new run",
        )
    if "training.rounds" in changed and after.training.cosine:
        n = before.training.rounds
        raise UsageError(
            f"--set training.rounds: training.cosine has lowered the learning rate over all {n} rounds",
            hint="start a new run with more rounds",
        )


def _differences(before: Any, after: Any, place: str = "") -> Iterator[str]:
    """Dotted names of the keys whose values differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            yield from _differences(before.get(key), after.get(key), f"{place}.{key}" if place else key)
    elif before != after:
        yield place


def _reached(run: Progress, training: Training) -> str:
    if run.round >= training.rounds:
        return f"{training.rounds} of {training.rounds} rounds"
    if _spent(run, training):
        return f"its budget of {training.budget_s:g} s spent in round {run.round}"
    return f"its target reached in round {run.round} of {training.rounds}"
