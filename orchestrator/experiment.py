"""The typed experiment file: what to run on which fleet. Paths in it are relative to the file."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from edgebed.datasets.base import DATASETS
from edgebed.datasets.partition import PARTITIONS, Partition
from edgebed.errors import UsageError, refuse
from edgebed.limits.cpu_quota import Grain as Grain
from edgebed.methods.base import METHODS
from edgebed.models.staged import MODELS
from edgebed.plugins import Registry
from edgebed.typed import Place, nearest, shown, spelled
from edgebed.wire.settings import Augment, Codec, Optimizer
from edgebed.wire.topics import NAME
from orchestrator.files.plugged import also_used, chosen_models, given, take_in, with_networks
from orchestrator.files.yaml_file import Document, load_yaml, mistakes, plain
from orchestrator.scenario.spec import LONGEST_S, ScenarioEvent

Positive = Annotated[int, msgspec.Meta(ge=1)]
MOST_ROUNDS = 1_000_000
Rounds = Annotated[int, msgspec.Meta(ge=1, le=MOST_ROUNDS)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Seed = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
Values = Annotated[list[Any], msgspec.Meta(min_length=1)]
Setting = dict[str, Any]
"""The values of swept keys in one part of a sweep, by dotted key (`{"training.batch_size": 32}`)."""

NOT_SWEPT = ("name", "methods", "plugins", "seeds", "sweep", "training.seed")  # the runs of all settings share them
MOST_PARTS = 1000  # settings × seeds

Overrides = Sequence[str] | Mapping[str, Any]
"""Values in place of the file's: `training.rounds=5` with the value in YAML, or by key (`{"training.rounds": 5}`)."""

UNNAMED = Path("experiment")
"""What messages call an experiment that is no file. Relative paths in it start at the current folder."""


class Plateau(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Multiplies lr by `factor` when test accuracy has not risen for `patience` evaluations (papers.md §1)."""

    factor: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.9
    patience: Positive = 10


class Training(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    rounds: Rounds = 20
    budget_s: Annotated[float, msgspec.Meta(gt=0, le=1e9)] | None = None  # the run ends then, before dilation
    target_accuracy: Share = 1.0
    stop_at_target: bool = True
    batch_size: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = 100
    epochs: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1
    max_batches: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    optimizer: Optimizer = Optimizer()
    augment: Augment = Augment()  # data augmentation on the devices
    plateau: Plateau | None = Plateau()
    cosine: bool = False  # anneal lr along a cosine over the rounds; turns the plateau rule off
    codec: Codec = Codec()
    sample: Share = 1.0  # share of the devices that is drawn each round
    evaluate_every: Rounds = 1  # weights are tested every so many rounds, and at the end
    round_ceiling_s: Annotated[float, msgspec.Meta(gt=0, le=1e7)] = 21_600.0  # longest round, before dilation
    max_update_norm: Annotated[float, msgspec.Meta(gt=0)] | None = 10.0  # largest |update - start| / |start| to merge
    seed: Seed = 0
    deadline_s: Annotated[float, msgspec.Meta(gt=0, le=1e7)] | None = None  # per round, before dilation
    quorum: Positive = 1  # merged devices that a round needs
    liveness_s: Annotated[float, msgspec.Meta(gt=0, le=1e7)] = 30.0  # a device without progress for so long is lost
    heartbeat_s: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 5.0

    def __post_init__(self) -> None:
        if self.liveness_s < 2 * self.heartbeat_s:
            raise ValueError(
                f"liveness_s {self.liveness_s:g} with heartbeat_s {self.heartbeat_s:g}: a healthy device would count "
                "as lost between two heartbeats; make liveness_s at least twice heartbeat_s"
            )
        if self.optimizer.name == "adam" and self.optimizer.momentum:
            raise ValueError(
                f"optimizer: adam with momentum {self.optimizer.momentum:g}, which only sgd has; "
                "write `name: sgd`, or remove momentum"
            )


class Environment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Profiles that change during the run (papers.md §1.3). Every `every` rounds, a share `share` of the devices gets a
    random profile among `profiles` (names), or among the fleet's own if none are named."""

    every: Rounds = 50
    share: Share = 0.3
    profiles: list[str] = []


class PrivacyChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The choice of the devices of one profile, or of one device. Keys that are left out are as for all devices."""

    dcor_alpha: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    patch_shuffle: Annotated[int, msgspec.Meta(ge=0)] | None = None


class PrivacySection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What devices do to their features for privacy (`edgebed.methods.parts.feature_privacy`). It is stored in their
    shards; methods do not see it."""

    dcor_alpha: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    patch_shuffle: Annotated[int, msgspec.Meta(ge=0)] = 0
    profiles: dict[str, PrivacyChoice] = {}
    devices: dict[str, PrivacyChoice] = {}


COST = re.compile(r"timed|flops|operations|reference( +\S.*)?")


class SimulatedFault(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An event of a scenario as version 0.2 wrote it, for simulations only: a device leaves `after_s` seconds into a
    round (from 0), and returns after `away_s`, or never. Read for one more version."""

    device: str
    round: Annotated[int, msgspec.Meta(ge=0)]
    after_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    away_s: Annotated[float, msgspec.Meta(ge=0)] | None = None

    def event(self) -> ScenarioEvent:
        """The same as an event. A device that returns at once is away for a microsecond."""
        return ScenarioEvent(
            round=self.round + 1,
            after_s=min(self.after_s, LONGEST_S),
            device=self.device,
            do="leave",
            for_s=None if self.away_s is None else min(max(self.away_s, 1e-6), LONGEST_S),
        )


class Surrogate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Takes times and bytes from a larger network and data set (`orchestrator.simulation.surrogate`): model, shape of a
    sample, number of classes, total number of training samples, and batch size."""

    model: dict[str, Any]
    input_shape: list[Positive] = msgspec.field(default_factory=lambda: [3, 32, 32])
    classes: Positive = 10
    train_samples: Positive = 50_000
    batch_size: Positive = 100


class Simulation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How `edgebed simulate` runs the experiment (docs/simulator.md).

    cost: `reference NAME` (what the pieces of the devices' work cost on that reference), `flops` (S²FL eq. 1),
        `operations` (FedPMT's counts), or `timed` (DTFL eq. 5: the halves are timed on this host). None: the reference
        that `speed` names, else `timed`; with `as_if` always `timed`. `reference` alone is an old word for `timed`.
    device_flops, server_flops: operations per second of one CPU and of the server, for `flops` and `operations`. With
        `as_if` and `timed`, the server is faster than a CPU by the ratio of the two.
    as_if: times and bytes of a larger experiment.
    server_slots: number of server halves that train at the same time. 0: no half waits for another (S²FL eq. 1).
    server_time: false: the server's steps take no time (the clock of DTFL's authors). Methods plan as with true.
    faults: superseded by `scenario`.
    calibration: a file of costs, which older versions read; only None is taken.
    """

    cost: str | None = None
    device_flops: Annotated[float, msgspec.Meta(gt=0)] = 1e10
    server_flops: Annotated[float, msgspec.Meta(gt=0)] = 5e10
    server_slots: Annotated[int, msgspec.Meta(ge=0)] = 1
    server_time: bool = True
    dilation: Annotated[float, msgspec.Meta(ge=1)] | None = None  # None: 1
    batched: bool = True
    as_if: Surrogate | None = None
    faults: list[SimulatedFault] | msgspec.UnsetType = msgspec.UNSET
    calibration: str | None = None

    def __post_init__(self) -> None:
        if self.calibration or self.cost in ("calibrated", "host"):
            raise ValueError(
                "simulations take no calibration and no costs of a host any more; record a reference with `edgebed "
                "reference record NAME`, then write `simulation: {cost: reference NAME.json}`, or `speed: reference "
                "NAME.json` for real runs too"
            )
        if self.cost is not None and not COST.fullmatch(self.cost):
            raise ValueError(f"cost {shown(self.cost)}: write `reference NAME`, timed, flops or operations")


SpeedWord = Annotated[str, msgspec.Meta(pattern=r"^(host|reference \S.*)$")]
"""`host`, or `reference NAME`: name or file of the reference whose CPU seconds those of the devices are."""

SPEED_WORDS = "host, or reference and the name or file of one, such as reference x86-avx512 (edgebed reference show)"
"""What messages say of it."""


class Server(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A server with CPUs of its own: a quota on the process that trains the server halves, divided by the dilation."""

    cpus: Annotated[float, msgspec.Meta(gt=0, le=1024)]


class Experiment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: str
    fleet: str  # path of the fleet file
    plugins: list[str] = []  # files, folders or installed packages with methods, models or data sets
    data: dict[str, Any] = msgspec.field(default_factory=lambda: {"name": "digits"})
    partition: Partition = Partition()
    privacy: PrivacySection = PrivacySection()
    model: dict[str, Any] = msgspec.field(default_factory=lambda: {"name": "resnet-tiny"})
    weights: str | None = None  # safetensors file that runs begin with; None: all as the seed draws them
    methods: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)]  # they run in turn on the same fleet
    interleave: bool = False  # round by round, and not one method after the other (`orchestrator.runs.turns`)
    training: Training = Training()
    seeds: Annotated[list[Seed], msgspec.Meta(min_length=1, max_length=1000)] | None = None  # in place of training.seed
    sweep: Annotated[dict[str, Values], msgspec.Meta(min_length=1)] | None = None  # by key: a setting for each product
    environment: Environment | None = None
    # events, or the name of a file
    scenario: str | Annotated[list[ScenarioEvent], msgspec.Meta(min_length=1)] | None = None
    simulation: Simulation = Simulation()
    server: Server | None = None  # None: what the host leaves, not dilated
    dilation: Literal["auto", "off"] | Annotated[float, msgspec.Meta(ge=1, lt=1e6)] = "auto"
    grain: Grain = "pacing"
    speed: SpeedWord | None = None  # None: what the fleet file says
    spread: bool | None = None  # whether pieces vary as those of the reference did; None: what the fleet file says

    @property
    def all_seeds(self) -> list[int]:
        return self.seeds or [self.training.seed]

    @property
    def parts(self) -> list[tuple[Setting, int]]:
        """The settings of the sweep, each with every seed, in the order in which they run."""
        sweep = self.sweep or {}
        settings = [dict(zip(sweep, values, strict=True)) for values in product(*sweep.values())]
        return list(product(settings, self.all_seeds))

    def count_parts(self) -> int:
        """How many `parts` there are; a sweep may name more than could be listed."""
        return math.prod((len(self.all_seeds), *(len(values) for values in (self.sweep or {}).values())))

    def part(self, setting: Setting, seed: int) -> Experiment:
        """The part of the experiment that runs in this setting with this seed."""
        document = Document(msgspec.to_builtins(self), UNNAMED, {})
        for key, value in setting.items():
            document.put_value(key.split("."), value, "sweep")
        document.put_value(["training", "seed"], seed, "seeds")
        return msgspec.convert(document, Experiment)


def load(path: Path, overrides: Overrides | None = None, plugins: Sequence[str] = ()) -> Experiment:
    """Read an experiment file, and use its plug-ins. `overrides` change values of it.

    Args:
        plugins: beside those of the file; paths in them start at the current folder.

    Raises:
        UsageError: a missing file, broken YAML, an unknown key or name, a wrong type or value. The message names the
            file and line.
    """
    return _checked(load_yaml(path), overrides or (), plugins)


def examined(
    path: Path, overrides: Overrides | None = None, plugins: Sequence[str] = ()
) -> tuple[dict[Place, UsageError], Experiment | None]:
    """All mistakes of an experiment file by their places, and the experiment as far as it can be told without them.
    Its plug-ins are used from then on; `plugins` as for `load`."""
    document = load_yaml(path)
    _prepare(document, overrides or (), plugins)
    return _mistakes(document)


def from_dict(values: Mapping[str, Any], overrides: Overrides | None = None, plugins: Sequence[str] = ()) -> Experiment:
    """An experiment that a program made, with the keys of the file. It is checked as a file is, and raises as `load`;
    messages call it `experiment`."""
    return _checked(Document(plain(values), UNNAMED, {}), overrides or (), plugins)


def only_methods(experiment: Experiment, names: Collection[str] | None, path: Path) -> Experiment:
    """The experiment with only the named methods; all of them where no name is given. Raises UsageError."""
    if not names:
        return experiment
    known = [str(method.get("name")) for method in experiment.methods]
    strange = sorted(set(names) - set(known))
    if strange:
        raise UsageError(
            f"{path} has no method {', '.join(strange)}{nearest(strange[0], known)}", hint=f"it has: {', '.join(known)}"
        )
    return msgspec.structs.replace(experiment, methods=[m for m in experiment.methods if m.get("name") in names])


def _checked(document: Document, overrides: Overrides, plugins: Sequence[str]) -> Experiment:
    _prepare(document, overrides, plugins)
    found, experiment = _mistakes(document)
    refuse(list(found.values()), document.path)
    assert experiment is not None
    return experiment


def _prepare(document: Document, overrides: Overrides, plugins: Sequence[str]) -> None:
    path = document.path
    if "devices" in document and "methods" not in document:
        raise UsageError(
            f"{path} is a fleet file, not an experiment file",
            hint="give an experiment file, which names a fleet and methods; `edgebed init DIR` writes one",
        )
    _override(document, overrides)
    training, sweep = document.get("training", {}), document.get("sweep")
    swept = isinstance(sweep, dict) and "training.budget_s" in sweep
    if isinstance(training, dict) and (swept or training.get("budget_s")) and not document.get("environment"):
        document["training"] = {"rounds": MOST_ROUNDS, **training}  # as many as the budget holds
    named = document.get("plugins", [])
    if isinstance(named, list) and all(isinstance(each, str) for each in named):
        document["plugins"], networks = with_networks([*named, *given(plugins)], chosen_models(document), path.parent)
        take_in(document["plugins"], networks, path.parent)


def _mistakes(document: Document) -> tuple[dict[Place, UsageError], Experiment | None]:
    found, experiment = mistakes(document, Experiment, document.path, {"speed": SPEED_WORDS})
    if experiment is None:
        return found, None

    def is_new(place: Place) -> bool:
        return not any(place[: len(each)] == each[: len(place)] for each in found)

    later = {place: error for place, error in _named_mistakes(experiment, document) if is_new(place)}
    if not found and not later:
        later = {("sweep", i): error for i, error in enumerate(_sweep_mistakes(experiment, document))}
    return found | later, experiment if found or later else _with_installed(experiment)


def _with_installed(experiment: Experiment) -> Experiment:
    """The experiment with the plug-ins of installed packages that it uses."""
    made = [METHODS.create(options) for options in experiment.methods]
    found = also_used(experiment.plugins, [*made, MODELS.create(experiment.model), DATASETS.create(experiment.data)])
    return msgspec.structs.replace(experiment, plugins=[*experiment.plugins, *found]) if found else experiment


def _override(document: Document, overrides: Overrides) -> None:
    if isinstance(overrides, Mapping):
        for key, value in overrides.items():
            document.put_value(key.split("."), plain(value), f"overrides[{key!r}]")
        return
    for override in overrides:
        key, found, text = override.partition("=")
        if not found:
            raise UsageError(f"--set {override}: no '='", hint="write key=value, as in training.rounds=5")
        document.put(key.split("."), text, f"--set {override}")


def _named_mistakes(experiment: Experiment, document: Document) -> Iterator[tuple[Place, UsageError]]:
    """Names that do not exist, options that a method, model or data set does not take, and seeds; with their places."""
    if not NAME.fullmatch(experiment.name):
        yield (
            ("name",),
            UsageError(
                f"{document.where('name')} is {shown(experiment.name)}, which is not a valid name",
                hint="use 1 to 63 letters, digits, '_', '.' or '-', a letter or digit first",
            ),
        )
    chosen: list[tuple[Place, Registry[Any], Mapping[str, Any]]] = [
        *((("methods", i), METHODS, options) for i, options in enumerate(experiment.methods)),
        (("model",), MODELS, experiment.model),
        (("data",), DATASETS, experiment.data),
    ]
    for place, registry, options in chosen:
        for i, error in enumerate(registry.mistakes(options, document.where, spelled(place))):
            yield (*place, i), error
    kind = experiment.partition.kind
    if kind not in PARTITIONS:
        text = f"{document.where('partition.kind')}: there is no partition {kind!r}{nearest(kind, list(PARTITIONS))}"
        yield ("partition", "kind"), UsageError(text, hint=f"choose one of: {', '.join(PARTITIONS)}")
    seeds = experiment.all_seeds
    if len(set(seeds)) < len(seeds):
        text = f"{document.where('seeds')}: one of {seeds} stands there twice"
        yield ("seeds",), UsageError(text, hint="name each seed once")


def _sweep_mistakes(experiment: Experiment, document: Document) -> Iterator[UsageError]:
    """Those of the sweep. The values of each setting are put into the document as `--set` puts them."""
    if (count := experiment.count_parts()) > MOST_PARTS:
        place = document.where("sweep")
        yield UsageError(f"{place}: {count} settings and seeds, above {MOST_PARTS}", hint="sweep fewer values")
        return
    for key, values in (experiment.sweep or {}).items():
        place = document.where(f"sweep.{key}")
        if key.partition(".")[0] in NOT_SWEPT or key in NOT_SWEPT:
            yield UsageError(f"{place}: {key} cannot be swept", hint="`seeds` and `methods` are lists already")
        if any(values.count(value) > 1 for value in values):
            yield UsageError(f"{place}: one value stands there twice", hint="write each value once")
    told = dict[str, UsageError]()  # what is wrong in several settings is told once
    for setting, _ in experiment.parts[:: len(experiment.all_seeds)] if experiment.sweep else ():
        own = copy.deepcopy(document)
        del own["sweep"]
        for key, value in setting.items():
            own.put_value(key.split("."), value, "sweep")
            own.lines[key] = f"{document.lines.get(f'sweep.{key}', '')}, sweep"
        told |= {str(error): error for error in _mistakes(own)[0].values()}
    yield from told.values()
