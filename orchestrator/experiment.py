"""The experiment file, typed: what to run on which fleet. Paths in it are relative to the file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
import yaml

from edgebed.datasets.partition import Partition
from edgebed.errors import UsageError
from edgebed.wire.messages import Codec, Optimizer

Positive = Annotated[int, msgspec.Meta(ge=1)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
T = TypeVar("T")


class Plateau(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """lr × factor when test accuracy has not risen for `patience` evaluations (methods.md §1)."""

    factor: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.9
    patience: Positive = 10


class Training(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    rounds: Positive = 20
    target_accuracy: Share = 1.0
    stop_at_target: bool = True
    batch_size: Positive = 100
    epochs: Positive = 1
    max_batches: Annotated[int, msgspec.Meta(ge=0)] = 0
    optimizer: Optimizer = Optimizer()
    plateau: Plateau | None = Plateau()
    cosine: bool = False  # anneal lr along a cosine over the rounds; the plateau rule is then off
    codec: Codec = Codec()
    sample: Share = 1.0  # share of the devices drawn each round
    seed: int = 0
    deadline_s: Annotated[float, msgspec.Meta(gt=0)] | None = None  # per round, before dilation
    round_ceiling_s: Annotated[float, msgspec.Meta(gt=0)] = 21_600.0  # no round waits longer, before dilation
    max_update_norm: Annotated[float, msgspec.Meta(gt=0)] | None = None  # |update - start| / |start| that may be merged
    quorum: Positive = 1  # merged devices a round needs
    liveness_s: Annotated[float, msgspec.Meta(gt=0)] = 30.0  # silence without progress until a device counts as lost
    heartbeat_s: Annotated[float, msgspec.Meta(gt=0)] = 5.0

    def __post_init__(self) -> None:
        if self.liveness_s < 2 * self.heartbeat_s:
            raise ValueError(
                f"liveness_s {self.liveness_s:g} with heartbeat_s {self.heartbeat_s:g}: a healthy device would count "
                "as lost between two heartbeats; make liveness_s at least twice heartbeat_s"
            )


class Environment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Profiles change during the run (methods.md §1.3): every `every` rounds for `share` of the devices, at random
    among `profiles` (names), or among the fleet's own where none are named."""

    every: Positive = 50
    share: Share = 0.3
    profiles: list[str] = []


class PrivacyChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the devices of one profile, or one device, choose; what is not given is as for all."""

    dcor_alpha: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    patch_shuffle: Annotated[int, msgspec.Meta(ge=0)] | None = None


class PrivacySection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What devices do to their features (`edgebed.methods.privacy`). It goes into their shards; no method sees it."""

    dcor_alpha: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    patch_shuffle: Annotated[int, msgspec.Meta(ge=0)] = 0
    profiles: dict[str, PrivacyChoice] = {}
    devices: dict[str, PrivacyChoice] = {}


class SimulatedFault(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A device of a simulation dies `after_s` seconds into a round, and comes back after `away_s`, or never. Seconds
    before dilation."""

    device: str
    round: Annotated[int, msgspec.Meta(ge=0)]
    after_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    away_s: Annotated[float, msgspec.Meta(ge=0)] | None = None


class AsIf(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Times and bytes of a larger network and data set (`orchestrator.simulation.as_if`): its model, the shape of its
    samples, its classes, how many training samples it has in all, and its batch size."""

    model: dict[str, Any]
    input_shape: list[Positive] = msgspec.field(default_factory=lambda: [3, 32, 32])
    classes: Positive = 10
    train_samples: Positive = 50_000
    batch_size: Positive = 100


class Simulation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How `edgebed simulate` runs the experiment (docs/simulator.md).

    `cost`: `reference` (DTFL eq. 5: cuts measured on this host ÷ CPUs, bytes ÷ rate), `flops` (S²FL eq. 1),
    `operations` (FedPMT's counts), or `calibrated` (from the file `calibration`). `flops` are those of one CPU and of
    the server, for the two models that count. `as_if`: the times and bytes of a larger experiment; with `reference` its
    server is as much faster than a CPU as `server_flops` are more than `device_flops`. `server_slots`: server halves
    that train at once; 0: as many as there are, so that none waits for another (S²FL eq. 1).
    `dilation`: None takes the calibration's, else 1.
    """

    cost: Literal["reference", "flops", "operations", "calibrated"] = "reference"
    calibration: str | None = None
    device_flops: Annotated[float, msgspec.Meta(gt=0)] = 1e10
    server_flops: Annotated[float, msgspec.Meta(gt=0)] = 5e10
    server_slots: Annotated[int, msgspec.Meta(ge=0)] = 1
    dilation: Annotated[float, msgspec.Meta(ge=1)] | None = None
    batched: bool = True
    as_if: AsIf | None = None
    faults: list[SimulatedFault] = []


class Experiment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: str
    fleet: str  # path of the fleet file
    data: dict[str, Any] = msgspec.field(default_factory=lambda: {"name": "digits"})
    partition: Partition = Partition()
    privacy: PrivacySection = PrivacySection()
    model: dict[str, Any] = msgspec.field(default_factory=lambda: {"name": "resnet-tiny"})
    methods: list[dict[str, Any]]  # each run in turn on the same standing fleet
    training: Training = Training()
    environment: Environment | None = None
    simulation: Simulation = Simulation()
    dilation: str | float = "auto"  # auto | off | a factor >= 1


def load(path: Path, overrides: list[str] | None = None) -> Experiment:
    """Read an experiment file. `overrides` are `key.sub=value` from the command line, values in YAML.

    Raises:
        UsageError: no such file, no YAML, an unknown key, a wrong type or value; with file, place and cure.
    """
    data = load_yaml(path)
    for override in overrides or []:
        key, found, value = override.partition("=")
        if not found:
            raise UsageError(f"--set {override}: no '='", cure="write key=value, as in training.rounds=5")
        _put(data, key.split("."), msgspec.yaml.decode(value.encode()) if value else None, override)
    if data.get("dilation") is False:
        data["dilation"] = "off"  # YAML reads a bare `off` as false
    return convert(data, Experiment, path)


def load_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; UsageError names file, line and cure where there is none."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", cure="give the path of an existing YAML file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path}: not YAML: {' '.join(str(error).split())}", cure="mend the file at that place"
        ) from None
    if not isinstance(data, dict):
        raise UsageError(f"{path}: holds no mapping of keys to values", cure="see profiles/ for examples")
    return data


def convert(data: Any, kind: type[T], path: Path) -> T:
    """`data` as `kind`; UsageError names file, place, what was expected, and the keys known there."""
    refuse_not_finite(data, path)
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at `$")
        place = place.strip("`").lstrip(".")
        raise UsageError(f"{path}{f' at {place}' if place else ''}: {text}", cure=_cure(kind, place)) from None


def refuse_not_finite(data: Any, path: Path, place: str = "") -> None:
    """YAML has .nan and .inf; comparisons let NaN through every bound."""
    if isinstance(data, float) and not math.isfinite(data):
        raise UsageError(f"{path} at {place}: {data} is no quantity", cure="give a finite number")
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        refuse_not_finite(value, path, f"{place}.{key}" if place else str(key))


def _cure(kind: Any, place: str) -> str:
    """The words that may stand at `place`, or the keys of the innermost struct on the way there."""
    for name in place.split("."):
        hint = get_type_hints(kind).get(name.partition("[")[0])
        inner = next(
            (t for t in (hint, *get_args(hint)) if isinstance(t, type) and issubclass(t, msgspec.Struct)), None
        )
        if get_origin(hint) is Literal:
            return f"choose one of: {', '.join(get_args(hint))}"
        if inner is None:
            break
        kind = inner
    return f"known keys here: {', '.join(kind.__struct_fields__)}"


def _put(data: dict[str, Any], keys: list[str], value: Any, text: str) -> None:
    for key in keys[:-1]:
        inner = data.setdefault(key, {})
        if not isinstance(inner, dict):
            raise UsageError(f"--set {text}: {key} is no mapping", cure="name a key of the experiment file")
        data = inner
    data[keys[-1]] = value
