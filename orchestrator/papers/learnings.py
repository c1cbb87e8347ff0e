"""Learn once, time many: what a run learned, apart from its clock, so that cells which differ in times alone share it.

What is learned follows from data, model, schedule, devices and method (`key_of`), where no plan reads a time. FedAvg,
SplitFed and SFL share one learning, equal to rounding; one method on other links and CPUs shares its own, to the bit
unless devices train in stacks (`simulation.batched`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec
import torch

from edgebed.errors import RunError, UsageError
from edgebed.methods.base import METHODS, Method
from edgebed.wire.settings import Codec
from orchestrator.experiment import PrivacySection, Training
from orchestrator.files.output import keep
from orchestrator.files.plugged import codes_of
from orchestrator.papers.cells import FOLDER, Cell, CellPath, Settings, Source, experiment_of, place_of, read_cell
from orchestrator.records.reader import read
from orchestrator.records.types import Evaluated, RoundFinished, RoundStarted, UpdateReceived

CLOCK = ("target_accuracy", "stop_at_target", "round_ceiling_s", "liveness_s", "heartbeat_s", "quorum", "deadline_s")
"""Keys of `training` that no weights follow from, where no device is lost and no deadline set."""


class Trajectory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run learned."""

    cell: CellPath  # whose run it was. It counts while that cell does
    accuracy: list[float | None]  # after each round, None where it was not tested
    drawn: list[list[str]]  # the devices of each round
    work: dict[str, tuple[int, int, int]]  # cut, batches and samples of a device, in every round that it was drawn for

    def reaches(self, training: Training) -> bool:
        """Whether it has all rounds of a run with these settings."""
        reached = any(each is not None and each >= training.target_accuracy for each in self.accuracy)
        return len(self.accuracy) >= training.rounds or (training.stop_at_target and reached)

    @property
    def tested(self) -> list[float]:
        """The accuracies of all tests in turn."""
        return [each for each in self.accuracy if each is not None]


# ---- which runs learn the same ----


def learning_of(method: Method) -> Mapping[str, object] | str:
    """`Method.learning` of its own class: a derived class may plan by times."""
    return method.learning() if "learning" in vars(type(method)) else Method.learning(method)


def key_of(settings: Settings) -> str:
    """Equal for runs that learn the same. Raises UsageError with the reason where the learning follows from times."""
    experiment = experiment_of(settings.experiment)
    method = METHODS.create(experiment.methods[0])
    known = learning_of(method)
    reasons = [known] if isinstance(known, str) else []
    reasons += ["a deadline leaves devices out"] if settings.probe or experiment.training.deadline_s else []
    reasons += ["the last weights have a test of their own"] if experiment.data.get("validation") else []
    reasons += ["a scenario's events come at times"] if experiment.scenario is not None else []
    reasons += ["the codec is not float32, or compresses"] if experiment.training.codec != Codec() else []
    reasons += ["features are changed for privacy"] if experiment.privacy != PrivacySection() else []
    reasons += ["the file of its first weights may change"] if experiment.weights is not None else []
    if reasons:
        raise UsageError(f"{method.name} cannot be timed again: {reasons[0]}", hint="compute it without --share")
    training = {name: value for name, value in settings.experiment["training"].items() if name not in CLOCK}
    parts = {name: settings.experiment[name] for name in ("data", "partition")}
    model = method.model_spec(settings.experiment["model"])
    code = [each.sha256 for each in codes_of(experiment.plugins)]
    stacked = [experiment.simulation.batched, *code]
    whole = [known, parts, model, training, list(settings.devices), stacked if code else stacked[0]]
    text = msgspec.json.encode(whole, order="sorted")
    return hashlib.sha256(text).hexdigest()[:16]


def source_of(settings: Settings, cell: Cell) -> Source:
    """What a cell with these settings says of the cell that it takes its learning from."""
    names = [each["methods"][0]["name"] for each in (settings.experiment, cell.settings.experiment)]
    exact = names[0] == names[1] and not settings.experiment["simulation"]["batched"]
    return Source(str(place_of(cell)), "bits" if exact else "rounding", cell.made.cpu_hours)


# ---- files ----


def find(results: Path, settings: Settings, own: Path) -> tuple[Trajectory, Cell] | None:
    """A trajectory for these settings, and the cell whose run it was; None: there is none that counts here. `own`: the
    file of the cell that asks, below `results`. Raises UsageError: as `key_of`."""
    path = _file(results, settings)
    training = msgspec.convert(settings.experiment["training"], Training)
    if not path.is_file():  # a pipe would be waited for
        return None
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Trajectory)
        cell = read_cell(results / found.cell)
        fits = key_of(cell.settings) == path.stem
    except (OSError, KeyError, TypeError, UsageError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    learner = cell.learned is None and not cell.stale and found.cell != str(own)
    same = cell.figures is not None and cell.figures.accuracy == found.accuracy
    here = cell.made.torch_simd == torch.backends.cpu.get_cpu_capability()
    counts = learner and same and here and fits and found.reaches(training)
    return (found, cell) if counts else None


def remember(results: Path, cell: Cell, run: Path) -> None:
    """Keep what the run of a cell has learned, where others may share it."""
    try:
        path = _file(results, cell.settings)
    except UsageError:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    keep(path, msgspec.json.encode(trajectory_of(run, str(place_of(cell)))))


def has_trajectory(results: Path, settings: Settings) -> bool:
    """Whether there is a file of what runs with these settings learn."""
    try:
        return _file(results, settings).exists()
    except UsageError:
        return False


def _file(results: Path, settings: Settings) -> Path:
    return results / FOLDER / f"{key_of(settings)}.json"


def trajectory_of(run: Path, cell: str = "") -> Trajectory:
    """What a run learned, from its records. Raises RunError where a device's work changes from round to round."""
    accuracy: list[float | None] = []
    drawn: list[list[str]] = []
    work: dict[str, tuple[int, int, int]] = {}
    cuts: dict[str, int] = {}
    for record in read(run / "records.jsonl"):
        match record:
            case RoundStarted():
                cuts = {name: each.stages for name, each in record.assignments.items()}
            case UpdateReceived(device=device, report=report):
                now = cuts[device], report.batches, report.samples
                if work.setdefault(device, now) != now:
                    raise RunError(f"the work of {device} changes", hint="such a run is not timed again")
            case RoundFinished(merged=merged):
                drawn.append(sorted(merged))
                accuracy.append(None)
            case Evaluated():
                accuracy[record.round] = record.accuracy
    return Trajectory(cell=cell, accuracy=accuracy, drawn=drawn, work=work)


def check_same(known: Trajectory, run: Path, *, cuts: bool = True) -> None:
    """Raises RunError where a run that was timed again drew other devices, or gave them other work. `cuts`: the same
    cuts, too."""
    again = trajectory_of(run)
    rounds = slice(len(again.drawn))
    drawn = {name for each in again.drawn for name in each}
    first = 0 if cuts else 1
    own, work = ({name: each[first:] for name, each in one.work.items() if name in drawn} for one in (again, known))
    if (again.drawn, again.accuracy, own) != (known.drawn[rounds], known.accuracy[rounds], work):
        raise RunError(
            f"the run {run} draws other devices or cuts than {known.cell}, whose learning it was to share",
            hint="compute it without --share",
        )
