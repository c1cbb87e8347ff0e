"""S²FL's grouping: by hand, against brute force, and the limits of its search."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgebed.methods.grouping import distance, group_by_labels, group_sizes

CLASSES = 3
counts = st.lists(st.integers(0, 20), min_size=CLASSES, max_size=CLASSES).filter(any)
fleets = st.dictionaries(st.sampled_from("abcdefgh"), counts, min_size=1, max_size=8)


def partitions(devices: Sequence[str], sizes: Sequence[int]) -> Iterator[list[tuple[str, ...]]]:
    """All ways to part the devices into groups of these sizes; some come more than once."""
    if not sizes:
        yield []
        return
    for group in combinations(devices, sizes[0]):
        rest = [device for device in devices if device not in group]
        for others in partitions(rest, sizes[1:]):
            yield [group, *others]


def total(labels: Mapping[str, Sequence[int]], groups: Sequence[Sequence[str]]) -> float:
    return sum(distance([labels[device] for device in group]) for group in groups)


def test_eq_2_by_hand() -> None:
    assert distance([[3, 1], [1, 3]]) == 0
    assert distance([[4, 0]]) == pytest.approx(math.sqrt(0.5))
    assert distance([[6, 0, 0], [0, 2, 0]]) == pytest.approx(math.sqrt((0.75 - 1 / 3) ** 2 + (1 / 12) ** 2 + 1 / 9))
    assert distance([[0, 0]]) == 0


def test_two_classes_each_go_together() -> None:
    labels = {"a": [9, 0], "b": [8, 0], "c": [0, 8], "d": [0, 9]}
    assert group_by_labels(labels, 2) == [("a", "d"), ("b", "c")]


def test_the_sizes_of_groups() -> None:
    assert [group_sizes(*pair) for pair in [(1, 2), (5, 2), (7, 3), (6, 3), (3, 8)]] == [
        [1],
        [2, 2, 1],
        [3, 2, 2],
        [3, 3],
        [3],
    ]


@settings(max_examples=60, deadline=None)
@given(fleets, st.integers(1, 4))
def test_against_brute_force(labels: dict[str, list[int]], size: int) -> None:
    """Every device stands in one group; never better than the best there is, and no exchange of two would help."""
    groups = group_by_labels(labels, size)
    assert sorted(device for group in groups for device in group) == sorted(labels)
    sizes = group_sizes(len(labels), size)
    assert sorted(map(len, groups), reverse=True) == sizes
    found = total(labels, groups)
    best = min(total(labels, each) for each in partitions(sorted(labels), sizes))
    assert found >= best - 1e-9
    assert found <= best + GAP * len(groups)
    for one, other in combinations(groups, 2):
        for a in one:
            for b in other:
                exchanged = [[b if d == a else d for d in one], [a if d == b else d for d in other]]
                assert total(labels, exchanged) >= total(labels, [one, other]) - 1e-9


GAP = 0.25
"""How far from the best the search may end, per group; a group of one class is at most 0.82 from uniform here."""


@given(fleets)
def test_the_order_in_which_devices_are_named_does_not_matter(labels: dict[str, list[int]]) -> None:
    assert group_by_labels(labels, 2) == group_by_labels(dict(sorted(labels.items(), reverse=True)), 2)
