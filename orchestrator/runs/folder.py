"""The files of one run: its resolved experiment, its records, its checkpoints."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import msgspec
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from edgebed.errors import FileError, UsageError, in_words
from edgebed.models.staged import Weights
from edgebed.plugin_code import PluginCode, write_plugins
from orchestrator.experiment import Experiment
from orchestrator.files.output import keep, sync_folder, write_aside
from orchestrator.files.plugged import codes_of
from orchestrator.files.yaml_file import write_yaml
from orchestrator.fleet.base import Enforcement
from orchestrator.fleet.spec.profile import fleet_path, found_speed
from orchestrator.records.older_words import ending_of
from orchestrator.records.reader import beginning, decode, read
from orchestrator.records.types import SIMULATED, Ending, RunFinished, RunStarted
from orchestrator.rounds.progress import Progress
from orchestrator.runs.data import located
from orchestrator.runs.start_weights import WEIGHTS
from orchestrator.scenario.files import listed


class Saved(msgspec.Struct):
    """A checkpoint: global weights, what the run has reached, what its method remembers as tensors, and the weights of
    rounds in hand (of simulations only)."""

    weights: Weights
    progress: Progress
    tensors: Weights
    in_hand: Weights = {}


class Series(msgspec.Struct, frozen=True):
    """The experiment that a run belongs to, by which its other runs are found."""

    id: str
    place: int  # of this run: its method's place in `methods`, after all runs of the parts before its own
    methods: list[dict[str, Any]]  # of the whole experiment
    seeds: list[int] = []  # of the whole experiment; empty: an earlier version's, with one
    sweep: dict[str, list[Any]] = {}  # of the whole experiment
    path: str = ""  # with a sweep, the experiment's file: names of files among the values start at its folder
    dilation: str | float | None = None  # as the experiment has it; None: an earlier version's
    weights: str = ""  # SHA-256 of the file whose weights this run began with; "": none, or an earlier version's


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.experiment = path / "experiment.yaml"
        self.series = path / "series.json"
        self.plugins = path / "plugins"  # copies of the code from outside that the run uses
        self.simulation = path / "simulation.json"  # of a simulation: what it goes on with (`simulation_file`)
        self.plan = path / "plan.jsonl"  # only of a run that repeats the recorded plan of another
        self.records = path / "records.jsonl"
        self.checkpoint = path / "checkpoint.safetensors"
        self.previous = path / "checkpoint.previous.safetensors"

    def make(
        self,
        experiment: bytes,
        series: Series | None = None,
        simulation: bytes = b"",
        plugins: Sequence[PluginCode] = (),
    ) -> None:
        """Make the folder and write the experiment into it; both are on the disk afterwards. Raises FileError."""
        try:
            self.path.mkdir(parents=True)
            sync_folder(self.path.parent)
        except OSError as error:
            raise FileError.of(error, self.path) from None
        if plugins:
            write_plugins(plugins, self.plugins)
        keep(self.experiment, experiment)
        if simulation:
            keep(self.simulation, simulation)
        if series is not None:
            keep(self.series, msgspec.json.encode(series))

    def read_series(self) -> Series | None:
        """The experiment that the run belongs to; None where the file is missing or damaged."""
        try:
            return msgspec.json.decode(self.series.read_bytes(), type=Series)
        except (OSError, msgspec.DecodeError):
            return None

    def save(self, weights: Weights, progress: Progress, tensors: Weights, in_hand: Weights | None = None) -> None:
        """Write the checkpoint, and keep the one before it. The file is written under another name and renamed once it
        is on the disk: after a kill or a loss of power one of the two is whole. Raises FileError.
        """
        parts = ((WEIGHTS, weights), (METHOD, tensors), (IN_HAND, in_hand or {}))
        named = {f"{kind}{name}": value.contiguous() for kind, part in parts for name, value in part.items()}
        aside = write_aside(self.checkpoint, save(named, {PROGRESS: msgspec.json.encode(progress).decode()}))
        try:
            if self.checkpoint.exists():
                self.checkpoint.replace(self.previous)
            aside.replace(self.checkpoint)
            sync_folder(self.path)
        except OSError as error:
            raise FileError.of(error, self.checkpoint) from None

    def restore(self, notify: Callable[[str], None] = lambda line: None) -> Saved | None:
        """The last checkpoint; where it is damaged or missing the one before it, and `notify` is told. None where no
        checkpoint exists. Raises UsageError where neither is whole.
        """
        damage = []
        for path in (self.checkpoint, self.previous):
            try:
                saved = _read(path)
            except Damaged as error:
                damage.append(f"{path} {error}")
                continue
            if damage:
                notify(
                    f"{'; '.join(damage)}: going on from the checkpoint before it, after round {saved.progress.round}"
                )
            return saved
        if not self.checkpoint.exists() and not self.previous.exists():
            return None
        raise UsageError("; ".join(damage), hint="run the experiment anew")

    @contextlib.contextmanager
    def fitting(self) -> Iterator[None]:
        """Where a run takes back what its checkpoint holds. Raises UsageError for what is none of this run's."""
        try:
            yield
        except (ValueError, LookupError, TypeError, AttributeError, msgspec.ValidationError) as error:
            raise UsageError(
                f"{self.checkpoint} was changed, or is of another version: {in_words(error)}",
                hint="run the experiment anew",
            ) from error

    def ending(self) -> Ending | None:
        """How the run ended; None where it still runs, or was killed. The file is searched from its end, where records
        of devices may follow that of the run's end."""
        try:
            with self.records.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
                at = data.rfind(beginning(RunFinished))
                if at <= data.rfind(beginning(RunStarted)):
                    return None
                last = decode(data[at : data.find(b"\n", at)])
        except (OSError, ValueError):  # none yet, or an empty one
            return None
        return ending_of(last) if isinstance(last, RunFinished) else None

    def progress(self) -> Progress:
        """The progress in the last whole checkpoint; no weights are read."""
        for path in (self.checkpoint, self.previous):
            with contextlib.suppress(Damaged):
                return _read(path, weights=False).progress
        return Progress()


METHOD, IN_HAND, PROGRESS = "method/", "in hand/", "edgebed-progress"


class Damaged(Exception):
    """A checkpoint that is not there, or not whole."""


def _read(path: Path, *, weights: bool = True) -> Saved:
    if not path.exists():
        raise Damaged("is missing")
    try:
        with safe_open(path, framework="pt") as file:
            progress = msgspec.json.decode((file.metadata() or {})[PROGRESS], type=Progress)
            named = {name: file.get_tensor(name) for name in file.keys()} if weights else {}  # noqa: SIM118 - no mapping
    except (SafetensorError, msgspec.DecodeError, KeyError, OSError) as error:
        raise Damaged(f"is damaged ({error})") from None
    return Saved(_named(named, WEIGHTS), progress, _named(named, METHOD), _named(named, IN_HAND))


def _named(tensors: Weights, kind: str) -> Weights:
    return {name.removeprefix(kind): value for name, value in tensors.items() if name.startswith(kind)}


def resolved(experiment: Experiment, path: Path, options: dict[str, Any], dilation: float) -> bytes:
    """The experiment file of a run: with one method, one seed, its dilation and absolute paths: it can be resumed."""
    simulation, speed = experiment.simulation, experiment.speed
    cost = simulation.cost and found_speed(simulation.cost, path)
    experiment = msgspec.structs.replace(
        experiment,
        simulation=msgspec.structs.replace(simulation, cost=cost),
        speed=speed and found_speed(speed, path),
        fleet=str(fleet_path(path, experiment.fleet).resolve()),
        data=located(experiment.data, path),
        weights=experiment.weights and str((path.parent / experiment.weights).resolve()),
        scenario=None if experiment.scenario is None else list(listed(experiment.scenario, path).events),
        plugins=[f"plugins/{code.entry}" for code in codes_of(experiment.plugins)],
        methods=[options],
        seeds=None,
        sweep=None,
        dilation=dilation,
    )
    return write_yaml(msgspec.to_builtins(experiment))


def backend_of(files: RunFolder) -> str | None:
    """The backend of a run, as the option `--backend` names it; None where it never began."""
    if files.simulation.exists():
        return SIMULATED
    started = [record for record in read(files.records) if isinstance(record, RunStarted)]
    if not started:
        return None
    return "software" if started[-1].enforcement == Enforcement.SOFTWARE else started[-1].backend
