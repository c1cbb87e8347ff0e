"""A reference: what the pieces of a device's work cost on one core, as a small file.

A device's CPUs are CPU seconds per second of a reference. Its file says how many of them a piece takes
(`edgebed.device.pieces`): recorded for the tasks of some experiments; of other tasks by the kinds of layers that they
call, with the error of that; and for code of which neither is known, by an index, the CPU time of one small loop.
"""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import msgspec

from edgebed.errors import UsageError, printable
from edgebed.models.staged import MODELS
from edgebed.typed import shown
from edgebed.wire.messages import Assignment
from edgebed.wire.topics import NAME
from orchestrator.files.output import keep
from orchestrator.files.shipped import shipped
from orchestrator.references.layer_costs import WidthLaw
from orchestrator.references.work_laws import SizeLaw, codec_key, work_key

VERSION = 1
SUFFIX = ".json"
QUANTILES = (0.5, 0.9, 0.99)


class PieceStats(msgspec.Struct, frozen=True):
    """CPU seconds of the pieces of one kind and size: `count` of them were seen. `quantiles_s`: at QUANTILES. `lag`:
    correlation of one piece with the next one of its task; 0 where there is only one per task."""

    size: float
    count: int
    mean_s: float
    sd_s: float = 0.0
    quantiles_s: tuple[float, ...] = ()
    lag: float = 0.0


class Unseen(msgspec.Struct, frozen=True):
    """Work that was not recorded. A batch takes `batch_s`, `features_s` more if its features go up, and `factor` × the
    sum of its layers; the first one of a task `first` times as long. `error`: root mean square of the relative error of
    each recorded task when the others tell its cost. `sizes`: pieces whose size is bytes, by kind."""

    batch_s: float = 0.0
    features_s: float = 0.0
    factor: float = 1.0
    first: float = 1.0
    error: float = 0.0
    sizes: dict[str, SizeLaw] = {}


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file.

    Attributes:
        origin: where and how it was recorded: core, kernel, torch, date, clock rate and temperature where known.
        index_s: CPU seconds of a small loop on the core while nothing else ran (`fleet.host.reference_loop.loop_s`).
        threads: with which torch computed.
        work: recorded pieces: by task (`task_key`) or server half (`half_key`) and kind, in the order of size.
        layers: what layers cost; empty where they were not measured.
    """

    version: int = VERSION
    name: str
    origin: dict[str, str]
    index_s: float
    threads: int = 1
    work: dict[str, dict[str, list[PieceStats]]]
    unseen: Unseen = Unseen()
    layers: dict[str, list[WidthLaw]] = {}


def task_key(assignment: Assignment) -> str:
    """The kind of a task: two with the same key have pieces of the same cost. Options of the optimizer that change no
    work are left out."""
    parts = [*_model_parts(assignment), work_key(assignment), _optimizer_part(assignment)]
    if assignment.uploads != ("weights",):
        parts.append(f"{' '.join(assignment.uploads)} as {codec_key(assignment.codec)}")
    if assignment.augment != type(assignment.augment)():
        parts.append("augmented")
    return " · ".join(parts)


def half_key(method: str, assignment: Assignment) -> str:
    """The same of a device's half on the server, which `method` makes."""
    cut = f"cut {assignment.stages}"
    return " · ".join([*_model_parts(assignment), f"{method}'s server half", cut, _optimizer_part(assignment)])


def _model_parts(assignment: Assignment) -> tuple[str, str]:
    model = MODELS.create(assignment.model, "assignment")
    options = " ".join(f"{key}={value}" for key, value in sorted(assignment.model.items()) if key != "name")
    return f"{model.name}{f' {options}' if options else ''}", str(assignment.learns)


def _optimizer_part(assignment: Assignment) -> str:
    optimizer = assignment.optimizer
    moments = (
        " momentum" * bool(optimizer.momentum)
        + " decay" * bool(optimizer.weight_decay)
        + " amsgrad" * optimizer.amsgrad
    )
    return f"{optimizer.name}{moments}"


# ---- files ----


def references_folder() -> Path:
    """Where the references are that come with Edgebed."""
    return shipped("profiles") / "references"


def known_references() -> list[str]:
    """Names of the references that come with Edgebed."""
    return sorted(path.stem for path in references_folder().glob(f"*{SUFFIX}"))


def load_reference(name: str) -> Reference:
    """The reference of a name that comes with Edgebed, or of a file: its path ends in `.json`. Raises UsageError: there
    is none, or it is damaged."""
    path = Path(name) if name.endswith(SUFFIX) else references_folder() / f"{Path(name).name}{SUFFIX}"
    try:
        read = msgspec.json.decode(path.read_bytes(), type=Reference)
    except FileNotFoundError:
        raise UsageError(
            f"there is no reference {name!r}",
            hint=f"choose one of: {', '.join(known_references())}; or give the path of a file that ends in {SUFFIX}; "
            "`edgebed reference record` makes one",
        ) from None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise UsageError(
            f"{printable(str(path))}: {printable(str(error))}", hint="record the reference again"
        ) from None
    if read.version != VERSION:
        raise UsageError(f"{path} is a reference of version {read.version}", hint="record the reference again")
    if wrong := fault(read):
        raise UsageError(f"{path}: {wrong}", hint="record the reference again")
    return read


def fault(reference: Reference) -> str:
    """Why no core can have such costs, or ""."""
    unseen = reference.unseen
    numbers = [unseen.batch_s, unseen.features_s, unseen.factor, unseen.first]
    numbers += [part for law in unseen.sizes.values() for part in (law.fixed_s, law.byte_s)]
    numbers += [part for laws in reference.layers.values() for law in laws for part in (law.call_s, law.unit_s)]
    for key, kinds in reference.work.items():
        for kind, sizes in kinds.items():
            known = [each.size for each in sizes]
            if not known or any(low >= high for low, high in pairwise([-1.0, *known])):
                return f"the sizes of {kind} of {printable(key)} are not in ascending order"
            numbers += [number for each in sizes for number in (each.size, each.mean_s, *each.quantiles_s)]
            if any(len(each.quantiles_s) not in (0, len(QUANTILES)) for each in sizes):
                return f"the quantiles of {kind} of {printable(key)} are not {len(QUANTILES)}"
    for laws in reference.layers.values():
        if not laws or any(low >= high for low, high in pairwise([0.0, *(law.width for law in laws)])):
            return "the widths of its layers are not in ascending order"
    if not NAME.fullmatch(reference.name):
        return f"its name {shown(reference.name)} is not a valid name"
    if not 0 < reference.index_s < math.inf:
        return f"its index is {reference.index_s}"
    return "" if all(0 <= number < math.inf for number in numbers) else "a cost in it is negative or not finite"


def save_reference(reference: Reference, path: Path) -> None:
    """Raises FileError."""
    text = msgspec.json.format(msgspec.json.encode(_rounded(msgspec.to_builtins(reference))), indent=1)
    keep(path, text + b"\n")


def _rounded(value: object) -> object:
    """Five digits: more than the measurements justify."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return [_rounded(inner) for inner in value] if isinstance(value, list | tuple) else value
