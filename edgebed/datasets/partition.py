"""How training samples are shared out over the devices. Pure and seeded: the same arguments give the same shares."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from edgebed.errors import UsageError

Indices = NDArray[np.int64]
Labels = Sequence[int] | Indices

LEAST = 2
"""Samples a device must have: batch norm cannot train on one."""

TRIES = 1000
"""Draws of a Dirichlet partition before it is given up for leaving a device too few samples."""


def iid(labels: Labels, devices: int, seed: int, min_samples: int = LEAST) -> list[Indices]:
    """Equal shares at random; sizes differ by one at most. Every sample goes to exactly one device.

    Raises:
        UsageError: there are too few samples.
    """
    _check(len(labels), devices, min_samples)
    order = np.random.default_rng(seed).permutation(len(labels))
    return [np.sort(part) for part in np.array_split(order, devices)]


def dirichlet(labels: Labels, devices: int, alpha: float, seed: int, min_samples: int = LEAST) -> list[Indices]:
    """Label skew: each class is shared out in proportions drawn from Dirichlet(alpha), all drawn anew until every
    device has `min_samples` **[ours]**. Smaller alpha, stronger skew. Every sample goes to exactly one device.

    Raises:
        UsageError: there are too few samples, or no draw leaves every device enough.
    """
    y = np.asarray(labels)
    _check(len(y), devices, min_samples)
    rng = np.random.default_rng(seed)
    for _ in range(TRIES):
        shares = _draw(y, devices, alpha, rng)
        if min(len(share) for share in shares) >= min_samples:
            return shares
    raise UsageError(
        f"Dirichlet({alpha:g}) left a device of {devices} with fewer than {min_samples} samples in {TRIES} draws",
        cure="use a larger alpha, more samples or fewer devices",
    )


PARTITIONS: dict[str, Callable[[Labels, int, float, int], list[Indices]]] = {
    "dirichlet": dirichlet,
    "iid": lambda labels, devices, _alpha, seed: iid(labels, devices, seed),
}
"""By the name in an experiment file: labels, devices, alpha, seed -> rows of each device."""


def partition(kind: str, labels: Labels, devices: int, *, alpha: float, seed: int) -> list[Indices]:
    """The partition that an experiment file names. Raises UsageError for an unknown name, or one that cannot be had."""
    if kind not in PARTITIONS:
        raise UsageError(f"there is no partition {kind!r}", cure=f"choose one of: {', '.join(sorted(PARTITIONS))}")
    return PARTITIONS[kind](labels, devices, alpha, seed)


def _draw(y: Indices, devices: int, alpha: float, rng: np.random.Generator) -> list[Indices]:
    parts: list[list[Indices]] = [[] for _ in range(devices)]
    for label in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == label))
        cuts = (np.cumsum(rng.dirichlet([alpha] * devices))[:-1] * len(rows)).round().astype(np.int64)
        for part, piece in zip(parts, np.split(rows, cuts), strict=True):
            part.append(piece)
    return [np.sort(np.concatenate(part)) for part in parts]


def _check(samples: int, devices: int, min_samples: int) -> None:
    if devices < 1:
        raise UsageError("a partition over no devices", cure="name at least one device in the fleet file")
    if samples < devices * min_samples:
        raise UsageError(
            f"{samples} training samples for {devices} devices", cure=f"each device needs {min_samples} at least"
        )
