"""A cell: one run for a table, as a small JSON file under `results/` that outlives the run's folder.

A cell is keyed by its settings and by the weights of its first two rounds. It is fresh while the table's file gives the
same settings; `check` also computes the first two rounds again. `seal` shows whether somebody edited the file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from edgebed.datasets.base import DATASETS
from edgebed.errors import EdgebedError, UsageError, printable
from edgebed.methods.base import METHODS
from edgebed.models.staged import MODELS
from edgebed.plugins import Registry
from orchestrator.experiment import Experiment, Seed
from orchestrator.files.output import keep
from orchestrator.fleet.spec.profile import ProfileSpec, fleet_of
from orchestrator.papers.entries import FreeValues
from orchestrator.papers.tables import Job, ScaleName, slug
from orchestrator.records.compare.quantities import RunFigures
from orchestrator.records.words.formatting import number

FOLDER = "learned"
"""The folder of results that holds what runs have learned (`learnings`)."""

FIRST_ROUNDS = 2
"""Number of rounds whose weights are part of a cell's key."""

Mebibytes = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
Hours = Annotated[float, msgspec.Meta(ge=0, lt=1e9)]
CellPath = Annotated[str, msgspec.Meta(pattern=r"\A[\w=-][\w.=-]*/(digits|real|full)/[\w=-][\w.=-]*\.json\Z")]
"""Of a file below the folder of results."""


class Settings(msgspec.Struct, frozen=True):
    """Everything that a cell's figures follow from, apart from the code and the data."""

    experiment: dict[str, Any]  # with all defaults and all options of its plugins
    probe: dict[str, Any] | None  # the experiment whose longest round gives the deadline; None: there is none
    devices: dict[str, str]  # profile of each device; `profiles`: their limits
    profiles: dict[str, Any]


class FirstRounds(msgspec.Struct):
    """SHA-256 and Euclidean norm of the merged weights after each of the first rounds."""

    digests: list[str] = []
    norms: list[float] = []


class Made(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How, when and with what a cell was computed. `memory_mib`: the most that its process held. `disk_mib`: of its
    folder of work; None: the cell is older than this key."""

    torch_simd: str
    versions: dict[str, str]
    threads: int
    commit: str
    costs: str
    date: str
    hours: Hours
    cpu_hours: Hours
    memory_mib: Mebibytes
    disk_mib: Mebibytes | None = None


class Source(msgspec.Struct, frozen=True):
    """The cell that learned what another one was timed with again (`learnings`)."""

    cell: CellPath
    # whether a run of the other cell would have learned the same to the bit, or to rounding
    same: Literal["bits", "rounding"]
    cpu_hours: Hours  # that it took


class Cell(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run for a table."""

    table: str
    scale: ScaleName
    row: str
    columns: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]  # that share it
    seed: Seed
    settings: Settings
    deadline_s: float | None = None
    first_rounds: FirstRounds
    figures: RunFigures | None = None  # of the run; None: nothing was trained
    values: FreeValues = {}  # what was computed without a run, by quantity and row
    made: Made
    stale: str = ""  # why its figures no longer count; "": they do
    seal: str = ""
    learned: Source | None = None  # where its accuracies are from; None: its own run learned them

    @property
    def exact(self) -> bool:
        """Whether a run of its settings gives its weights to the bit, on the same kind of CPU."""
        return self.learned is None or self.learned.same == "bits"


class Damaged(UsageError):
    """A file that holds no cell, or one that was edited."""

    def __init__(self, text: str) -> None:
        super().__init__(text, hint="take it from git again, or remove it and compute it again")


def settings_of(job: Job, path: Path) -> Settings:
    """The settings of a job. `path`: of the table's file."""
    devices = fleet_of(path, job.experiment.fleet).devices
    return Settings(
        experiment=in_full(job.experiment),
        probe=None if job.probe is None else in_full(job.probe),
        devices={device.name: device.profile.name for device in devices},
        profiles=plain({device.profile.name: device.profile for device in devices}),
    )


def in_full(experiment: Experiment) -> dict[str, Any]:
    """The experiment with the defaults of method, model and data set, as JSON has it."""
    return plain(
        msgspec.structs.replace(
            experiment,
            methods=[_options(METHODS, each) for each in experiment.methods],
            model=_options(MODELS, experiment.model),
            data=_options(DATASETS, experiment.data),
        )
    )


def _options(registry: Registry[Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    return {**spec, **msgspec.to_builtins(registry.create(spec).options)}


def plain(value: Any) -> dict[str, Any]:
    """As it is read back from JSON."""
    return msgspec.json.decode(msgspec.json.encode(value), type=dict[str, Any])


def same_settings(one: Settings, other: Settings) -> bool:
    """Whether they are equal. A key that is newer than one of them has its default there."""
    try:
        return one == other or _filled(one) == _filled(other)
    except (msgspec.ValidationError, EdgebedError):
        return False


def _filled(stored: Settings) -> Settings:
    profiles = plain(msgspec.convert(stored.profiles, dict[str, ProfileSpec]))
    experiment, probe = _again(stored.experiment), _again(stored.probe)
    return msgspec.structs.replace(stored, experiment=experiment, probe=probe, profiles=profiles)


def _again(experiment: dict[str, Any] | None) -> Any:
    if experiment is None:
        return None
    again = in_full(experiment_of(experiment))
    pairs = zip(again["methods"], experiment["methods"], strict=True)
    return {**again, "methods": [{**full, **stored} for full, stored in pairs]}


def experiment_of(stored: dict[str, Any]) -> Experiment:
    """The experiment of a cell's settings. SFL has all options of S²FL there, of which it sets most itself.
    Raises UsageError where it is none, or a later version has removed or renamed something of it."""
    try:
        methods = [
            {key: value for key, value in each.items() if key in ("name", *known.__struct_fields__)}
            for each in stored["methods"]
            for known in [METHODS.create({"name": each["name"]}).Options]
        ]
        return msgspec.convert({**stored, "methods": methods}, Experiment)
    except (AttributeError, KeyError, TypeError, msgspec.ValidationError) as error:
        raise UsageError(f"these settings are no experiment: {printable(str(error))}") from None


# ---- files ----


def place(table: str, scale: str, row: str, column: str, seed: int) -> Path:
    """The file of a cell below the folder of results. `column`: the first of those that share it."""
    return Path(slug(table)) / scale / f"{slug(row)}--{slug(column)}--seed{seed}.json"


def place_of(cell: Cell) -> Path:
    return place(cell.table, cell.scale, cell.row, cell.columns[0], cell.seed)


def write_cell(results: Path, cell: Cell) -> Path:
    """Write the file of a cell, sealed; returns its path. Every field is a line, so that changes are seen in git."""
    path = results / place_of(cell)
    path.parent.mkdir(parents=True, exist_ok=True)
    fields = _fields(msgspec.structs.replace(cell, seal=_seal(cell)))
    lines = ",\n".join(f"{_text(name)}: {_text(value)}" for name, value in fields.items())
    keep(path, f"{{\n{lines}\n}}\n".encode())
    return path


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _seal(cell: Cell) -> str:
    fields = _fields(msgspec.structs.replace(cell, seal=""))
    return hashlib.sha256(msgspec.json.encode(fields)).hexdigest()[:16]


def _fields(cell: Cell) -> dict[str, Any]:
    """As JSON has them. `learned` is left out where it is None: the seals of older cells are without it."""
    return {name: value for name, value in plain(cell).items() if name != "learned" or value is not None}


def read_cell(path: Path) -> Cell:
    """Raises Damaged."""
    try:
        if not path.is_file():  # a pipe would be waited for
            raise FileNotFoundError("there is no such file")
        cell = msgspec.json.decode(path.read_bytes(), type=Cell)
        edited = cell.seal != _seal(cell)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Damaged(f"{path} holds no cell: {printable(str(error))}") from None
    if edited:
        raise Damaged(f"{path} was edited: its figures are not those that were computed")
    if slug(cell.table) in ("", FOLDER):
        raise Damaged(f"{path} holds no cell: no table has this name")
    if cell.figures is not None and not cell.figures.possible:
        raise Damaged(f"{path} holds no cell: no run gives its figures")
    return cell


class Kept(msgspec.Struct, frozen=True):
    """What the folder of results holds for a job. `why` it does not count; "": it does."""

    path: Path
    cell: Cell | None
    why: str

    @property
    def told(self) -> str:
        """`why`, with the name of the file."""
        return self.why if str(self.path) in self.why else f"{self.path}: {self.why}"


def kept(results: Path, table: str, scale: ScaleName, job: Job, path: Path) -> Kept:
    """The cell of a job, if there is one. `path`: of the table's file."""
    file = results / place(table, scale, job.row, job.columns[0], job.seed)
    if not file.exists():
        return Kept(file, None, "not computed")
    try:
        cell = read_cell(file)
    except Damaged as error:
        return Kept(file, None, str(error))
    if results / place_of(cell) != file:
        return Kept(file, None, f"{file} holds another cell: {place_of(cell)}")
    if cell.columns != job.columns or not same_settings(cell.settings, settings_of(job, path)):
        return Kept(file, cell, "stale: the table's file has other settings now")
    target = None if cell.figures is None else cell.figures.target_accuracy
    wanted = job.experiment.training.target_accuracy if job.trained else None
    if target != wanted or not (job.trained or cell.values):
        return Kept(file, None, f"{file} was edited: its figures are not those of its settings")
    return Kept(file, cell, f"stale: {printable(cell.stale)}" if cell.stale else _why_not_learned(results, cell))


def _why_not_learned(results: Path, cell: Cell) -> str:
    """Why the learning of a cell that was timed again does not count; "": it does, or is its own."""
    if cell.learned is None or cell.figures is None:
        return ""
    path, count = results / cell.learned.cell, len(cell.figures.accuracy)
    try:
        source = read_cell(path)
    except Damaged as error:
        return f"stale: {error}"
    known = source.figures.accuracy[:count] if source.figures and not (source.stale or source.learned) else []
    return "" if known == cell.figures.accuracy else f"stale: {path}, whose learning it has, no longer counts"


def saved_by(cells: Iterable[Cell]) -> str:
    """How many cells were timed again, and the CPU hours that it saved; "": none."""
    saved = [cell.learned.cpu_hours - cell.made.cpu_hours for cell in cells if cell.learned is not None]
    return f"{len(saved)} of the cells timed again, {number(sum(saved), 2)} CPU hours saved" if saved else ""


def outcome(cell: Cell) -> RunFigures | FreeValues:
    """What the quantities follow from."""
    return cell.values if cell.figures is None else cell.figures
