"""S²FL's data balance: devices in groups whose labels together are nearest to uniform (eq. 2; papers.md §2). Pure.

The exact search is exponential, so groups are grown greedily, the one furthest from uniform first, and then refined by
exchanging pairs of devices as long as that helps **[ours]**. What is minimal is the sum of the groups' distances, and
groups are of equal size but for one device **[ours]**: the paper states neither.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations, product
from random import Random

Counts = Sequence[int]
"""Samples per class of one device."""


def distance(counts: Sequence[Counts]) -> float:
    """L2 distance of the summed, normalised label distribution of a group from uniform (eq. 2); 0 without samples."""
    return _distance([sum(column) for column in zip(*counts, strict=True)])


def _distance(sums: Sequence[int]) -> float:
    total, even = sum(sums), 1 / max(1, len(sums))
    return math.sqrt(sum((count / total - even) ** 2 for count in sums)) if total else 0.0


def group_by_labels(labels: Mapping[str, Counts], size: int) -> list[tuple[str, ...]]:
    """Devices in as few groups of at most `size` as there can be; devices and groups in the order of names.

    Args:
        labels: samples per class by device, all of the same length.
    """
    groups = _grow(labels, group_sizes(len(labels), size))
    while _exchange(labels, groups):
        pass
    return sorted(tuple(sorted(group)) for group in groups)


def random_groups(devices: Collection[str], size: int, seed: int, round: int) -> list[tuple[str, ...]]:
    """The same number of groups of the same sizes, drawn: a control for the balance **[ours]**."""
    left = sorted(devices)
    Random(f"{seed}/groups/{round}").shuffle(left)
    groups = []
    for count in group_sizes(len(left), size):
        groups.append(tuple(sorted(left[:count])))
        del left[:count]
    return sorted(groups)


def group_sizes(devices: int, size: int) -> list[int]:
    """Sizes of the groups, the larger ones first, none more than one larger than another."""
    count = -(-devices // size)
    return [devices // count + (number < devices % count) for number in range(count)]


def _grow(labels: Mapping[str, Counts], sizes: Sequence[int]) -> list[list[str]]:
    """One of the most uneven devices in each group; then the group furthest from uniform takes whom it needs most."""
    left = sorted(labels, key=lambda device: (-distance([labels[device]]), device))
    groups = [[left.pop(0)] for _ in sizes]
    while left:
        room = [number for number, group in enumerate(groups) if len(group) < sizes[number]]
        neediest = max(room, key=lambda number: (_of(labels, groups[number]), -number))
        group = groups[neediest]
        best = min(left, key=lambda device: (_of(labels, [*group, device]), device))
        left.remove(best)
        group.append(best)
    return groups


def _exchange(labels: Mapping[str, Counts], groups: list[list[str]]) -> bool:
    """Between every two groups, carry out the exchange of two devices that helps most; whether any helped."""
    helped = False
    for one, other in combinations(groups, 2):
        before = _of(labels, one) + _of(labels, other)
        i, j, after = min(_exchanges(labels, one, other), key=lambda each: each[2])
        if before - after > 1e-12:
            one[i], other[j], helped = other[j], one[i], True
    return helped


def _exchanges(
    labels: Mapping[str, Counts], one: Sequence[str], other: Sequence[str]
) -> Iterator[tuple[int, int, float]]:
    """Places in two groups, and the sum of both distances once the devices there have been exchanged."""
    sums, others = _sums(labels, one), _sums(labels, other)
    for i, j in product(range(len(one)), range(len(other))):
        moves = [b - a for a, b in zip(labels[one[i]], labels[other[j]], strict=True)]
        first = [total + move for total, move in zip(sums, moves, strict=True)]
        second = [total - move for total, move in zip(others, moves, strict=True)]
        yield i, j, _distance(first) + _distance(second)


def _of(labels: Mapping[str, Counts], group: Sequence[str]) -> float:
    return _distance(_sums(labels, group))


def _sums(labels: Mapping[str, Counts], group: Sequence[str]) -> list[int]:
    return [sum(column) for column in zip(*(labels[device] for device in group), strict=True)]
