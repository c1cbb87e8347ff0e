"""How training samples are shared out over the devices. Pure and seeded: the same arguments give the same shares."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from edgebed.datasets.tree import layer_shares, place
from edgebed.errors import UsageError

Indices = NDArray[np.int64]
Labels = Sequence[int] | Indices

LEAST = 2
"""Samples a device must have: batch norm cannot train on one."""

TRIES = 1000
"""How often a Dirichlet partition is drawn before it is given up because a device always gets too few samples."""


class Partition(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The section `partition` of an experiment file. Each kind reads the keys that concern it."""

    kind: str = "iid"
    alpha: Annotated[float, msgspec.Meta(gt=0)] = 0.5  # of dirichlet
    cap: bool = False  # of dirichlet: a device that has its equal share gets no more (FedML)
    counts: list[list[Annotated[int, msgspec.Meta(ge=0)]]] = []  # of counts: a device's samples of each class
    classes: Annotated[int, msgspec.Meta(ge=1)] = 2  # of classes: how many a device has
    layers: list[int | list[str]] = []  # of layers: how many devices, or which, from the leaves to the root
    shares: Literal["equal", "biased", "highly_biased"] | list[Annotated[float, msgspec.Meta(gt=0)]] = "equal"


class Samples(msgspec.Struct, frozen=True):
    """What is shared out, and to whom. `labels` (N,); `writers` (N,) where the data set knows who wrote a sample."""

    labels: Indices
    devices: Sequence[str]
    seed: int
    writers: Indices | None = None


def iid(labels: Labels, devices: int, seed: int) -> list[Indices]:
    """Equal shares at random; sizes differ by one at most. Every sample goes to exactly one device.

    Raises:
        UsageError: there are too few samples.
    """
    _check(len(labels), devices)
    order = np.random.default_rng(seed).permutation(len(labels))
    return [np.sort(part) for part in np.array_split(order, devices)]


def dirichlet(labels: Labels, devices: int, alpha: float, seed: int, *, cap: bool = False) -> list[Indices]:
    """Label skew: each class is shared out in proportions drawn from Dirichlet(alpha), all drawn anew until every
    device has `LEAST` **[ours]**. Smaller alpha, stronger skew. Every sample goes to exactly one device.

    Args:
        cap: a device that has its equal share of all samples already gets nothing of the classes that follow, as in
            FedML and the code of DTFL. So shards are of similar size: N / devices plus one class's samples at most.

    Raises:
        UsageError: there are too few samples, or no draw leaves every device enough.
    """
    y = np.asarray(labels)
    _check(len(y), devices)
    rng = np.random.default_rng(seed)
    for _ in range(TRIES):
        shares = _draw(y, devices, alpha, rng, cap)
        if min(len(share) for share in shares) >= LEAST:
            return shares
    raise UsageError(
        f"Dirichlet({alpha:g}) left a device of {devices} with fewer than {LEAST} samples in {TRIES} draws",
        hint="use a larger alpha, more samples or fewer devices",
    )


def by_classes(labels: Labels, devices: int, classes: int, seed: int) -> list[Indices]:
    """`classes` classes on every device, exactly (FedPMT: two on each of 100 devices).

    A class is cut into one piece for each device that has it. Larger classes are cut into more pieces, so that the
    pieces are as equal as possible. Which device gets which piece is random **[ours]**. (Dealing out equal shards of
    the sorted labels, as is often done, gives some devices fewer or more classes.) Every sample goes to exactly one
    device.

    Raises:
        UsageError: more classes than there are, fewer places than classes, or too few samples for so many pieces.
    """
    y = np.asarray(labels)
    _check(len(y), devices)
    names, sizes = np.unique(y, return_counts=True)
    pieces = _pieces(sizes, devices, classes)
    rng = np.random.default_rng(seed)
    holders = _holders(pieces, devices, classes, rng)
    parts: list[list[Indices]] = [[] for _ in range(devices)]
    for name, held_by in zip(names, holders, strict=True):
        rows = rng.permutation(np.flatnonzero(y == name))
        for device, piece in zip(held_by, np.array_split(rows, len(held_by)), strict=True):
            parts[device].append(piece)
    return [np.sort(np.concatenate(part)) for part in parts]


def by_layers(labels: Labels, sizes: Sequence[int], shares: Sequence[float], seed: int) -> list[list[Indices]]:
    """The early-exit paper's split over the layers of a tree of nodes, at random (IID): the first layer, the leaves
    that serve with exit 1, holds the first share, and so on up to the root. Within a layer its devices get equal
    parts **[ours]**: the paper says what a layer holds (captions of its tables 2, 5 and 6) and no more.

    Args:
        sizes: how many devices each layer has, leaves first.
        shares: of the samples per layer; only their ratios count.

    Returns:
        Rows by layer and device. Every sample goes to exactly one device.
    """
    _check(len(labels), sum(sizes))
    order = np.random.default_rng(seed).permutation(len(labels))
    cuts = np.cumsum(np.asarray(shares) / sum(shares) * len(labels)).round().astype(np.int64)[:-1]
    layers = [np.array_split(part, size) for part, size in zip(np.split(order, cuts), sizes, strict=True)]
    least = min(len(part) for layer in layers for part in layer)
    if least < LEAST:
        raise UsageError(
            f"{len(labels)} training samples leave a device of the layers {list(sizes)} with {least}",
            hint="use more samples, or shares that are nearer each other",
        )
    return [[np.sort(part) for part in layer] for layer in layers]


def by_writer(writers: Labels, devices: int, seed: int) -> list[Indices]:
    """The natural partition (LEAF): all samples of a writer are on one device; writers are dealt out at random, as
    many to each device as to any other or one more. Every sample goes to exactly one device.

    Raises:
        UsageError: there are fewer writers than devices, or a device's writers wrote too little.
    """
    who = np.asarray(writers)
    names = np.unique(who)
    if len(names) < devices:
        raise UsageError(
            f"{len(names)} writers for {devices} devices", hint="use more writers and samples, or fewer devices"
        )
    _check(len(who), devices)
    dealt = np.array_split(np.random.default_rng(seed).permutation(names), devices)
    shares: list[Indices] = [np.flatnonzero(np.isin(who, some)) for some in dealt]
    if (least := min(map(len, shares))) < LEAST:
        raise UsageError(
            f"the writers of one device wrote {least} samples", hint="use more samples, or fewer devices than writers"
        )
    return shares


def by_counts(labels: Labels, counts: Sequence[Sequence[int]], seed: int) -> list[Indices]:
    """So many samples of each class on each device, drawn at random; what is left over is not used.

    Args:
        counts: by device, by class from 0.

    Raises:
        UsageError: rows of unequal length or not one entry per class, more of a class than there are, a device with too
            few.
    """
    y = np.asarray(labels)
    classes = int(y.max()) + 1
    if wrong := [f"{len(row)} counts for device {place}" for place, row in enumerate(counts, 1) if len(row) != classes]:
        raise UsageError(f"{wrong[0]} and {classes} classes", hint=f"give {classes} numbers per device, 0 for none")
    wanted = np.asarray(counts, dtype=np.int64)
    there = np.bincount(y, minlength=classes)
    if (label := int((wanted.sum(0) - there).argmax())) >= 0 and wanted[:, label].sum() > there[label]:
        raise UsageError(
            f"counts ask for {wanted[:, label].sum()} samples of class {label}, there are {there[label]}",
            hint="lower the counts of that class, or use more samples",
        )
    if (least := int(wanted.sum(1).min())) < LEAST:
        raise UsageError(f"counts leave a device with {least} samples", hint=f"give every device {LEAST} at least")
    rng = np.random.default_rng(seed)
    rows = [np.split(rng.permutation(np.flatnonzero(y == k)), np.cumsum(wanted[:, k])) for k in range(classes)]
    return [np.sort(np.concatenate([pieces[device] for pieces in rows])) for device in range(len(wanted))]


# ---- by name ---------------------------------------------------------------------------------------------------------


def _layers(samples: Samples, wanted: Partition) -> list[Indices]:
    layers = place(wanted.layers, samples.devices)
    shares = layer_shares(wanted.shares, len(layers))
    rows = by_layers(samples.labels, [len(layer) for layer in layers], shares, samples.seed)
    found = {
        device: part
        for layer, parts in zip(layers, rows, strict=True)
        for device, part in zip(layer, parts, strict=True)
    }
    return [found[device] for device in samples.devices]


def _counts(samples: Samples, wanted: Partition) -> list[Indices]:
    if len(wanted.counts) != len(samples.devices):
        raise UsageError(
            f"partition.counts has {len(wanted.counts)} rows for {len(samples.devices)} devices",
            hint="give one row per device, in the fleet's order",
        )
    return by_counts(samples.labels, wanted.counts, samples.seed)


def _writer(samples: Samples, _: Partition) -> list[Indices]:
    if samples.writers is None:
        raise UsageError("this data set does not say who wrote a sample", hint="use the data set femnist")
    return by_writer(samples.writers, len(samples.devices), samples.seed)


PARTITIONS: dict[str, Callable[[Samples, Partition], list[Indices]]] = {
    "classes": lambda s, wanted: by_classes(s.labels, len(s.devices), wanted.classes, s.seed),
    "counts": _counts,
    "dirichlet": lambda s, wanted: dirichlet(s.labels, len(s.devices), wanted.alpha, s.seed, cap=wanted.cap),
    "iid": lambda s, _: iid(s.labels, len(s.devices), s.seed),
    "layers": _layers,
    "writer": _writer,
}
"""By the name in an experiment file: what is shared out, and the section's keys -> rows of each device."""


def partition(samples: Samples, wanted: Partition) -> list[Indices]:
    """The rows of each device, in the order of `samples.devices`. Raises UsageError for an unknown kind, or for one
    that cannot be had."""
    if wanted.kind not in PARTITIONS:
        raise UsageError(f"there is no partition {wanted.kind!r}", hint=f"choose one of: {', '.join(PARTITIONS)}")
    return PARTITIONS[wanted.kind](samples, wanted)


# ---- parts -----------------------------------------------------------------------------------------------------------


def _draw(y: Indices, devices: int, alpha: float, rng: np.random.Generator, cap: bool) -> list[Indices]:
    parts: list[list[Indices]] = [[] for _ in range(devices)]
    for label in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == label))
        proportions = rng.dirichlet([alpha] * devices)
        if cap:
            sizes = np.array([sum(map(len, part)) for part in parts])
            proportions = _rest(proportions, sizes < len(y) / devices)
        cuts = (np.cumsum(proportions)[:-1] * len(rows)).round().astype(np.int64)
        for part, piece in zip(parts, np.split(rows, cuts), strict=True):
            part.append(piece)
    return [np.sort(np.concatenate(part)) for part in parts]


def _rest(proportions: NDArray[np.float64], open: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The proportions of the devices that still take samples, scaled to add up to 1; equal where all are zero, which
    happens with a small alpha."""
    left = np.where(open, proportions, 0.0)
    if not left.any():
        left = open.astype(np.float64)
    rest: NDArray[np.float64] = left / left.sum()
    return rest


def _pieces(sizes: Indices, devices: int, classes: int) -> Indices:
    """Into how many pieces each class is cut: at least one, at most one per device, `devices` x `classes` in all. Each
    further piece goes to the class whose pieces are the largest."""
    if classes > len(sizes):
        raise UsageError(f"{classes} classes per device of {len(sizes)}", hint=f"set classes to {len(sizes)} or fewer")
    if devices * classes < len(sizes):
        raise UsageError(
            f"{devices} devices with {classes} classes each would leave out some of {len(sizes)} classes",
            hint=f"set classes to {math.ceil(len(sizes) / devices)} at least, or use more devices",
        )
    most = np.minimum(devices, sizes // math.ceil(LEAST / classes))
    pieces = np.ones(len(sizes), dtype=np.int64)
    for _ in range(devices * classes - len(sizes)):
        room = np.where(pieces < most, sizes / pieces, 0.0)
        if not room.any():
            break
        pieces[room.argmax()] += 1
    if pieces.sum() < devices * classes or (pieces > most).any():
        raise UsageError(
            f"the classes are too small for {classes} of them on each of {devices} devices",
            hint="use more samples, fewer devices or fewer classes",
        )
    return pieces


def _holders(pieces: Indices, devices: int, classes: int, rng: np.random.Generator) -> list[list[int]]:
    """Which devices have each class. A device must take a class that has as many pieces left as there are devices left;
    it draws its other classes, weighted by the pieces left. So each device gets `classes` different ones, and no piece
    remains."""
    left = pieces.copy()
    holders: list[list[int]] = [[] for _ in pieces]
    for device in range(devices):
        must = np.flatnonzero(left == devices - device)
        free = np.where(left < devices - device, left, 0)
        drawn = classes - len(must)
        some = rng.choice(len(left), drawn, replace=False, p=free / free.sum()) if drawn else must[:0]
        for index in (*must, *some):
            holders[index].append(device)
            left[index] -= 1
    return holders


def _check(samples: int, devices: int) -> None:
    if devices < 1:
        raise UsageError("a partition over no devices", hint="name at least one device in the fleet file")
    if samples < devices * LEAST:
        raise UsageError(
            f"{samples} training samples for {devices} devices", hint=f"each device needs {LEAST} at least"
        )
