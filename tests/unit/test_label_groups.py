"""S²FL's grouping: by hand, against brute force, and the limits of its search."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgebed.methods.parts.label_groups import distance, group_by_labels, group_sizes

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


@pytest.mark.parametrize(
    ("counts", "size", "expected"),
    [
        ([[9, 0], [0, 9], [9, 0], [0, 9]], 2, 0.0),
        ([[9, 1], [8, 2], [1, 9], [2, 8], [7, 3], [3, 7], [6, 4], [4, 6]], 2, 0.0),  # each with its mirror image
        ([[5, 0, 0], [5, 0, 0], [0, 5, 0], [0, 5, 0], [0, 0, 5], [0, 0, 5]], 3, 0.0),  # one of each class
        ([[6, 0], [0, 2], [0, 4], [3, 0], [0, 3], [5, 5]], 3, 0.0),  # 6 against 2 + 4, 3 against 3 beside 5, 5
        ([[9, 0], [9, 0], [9, 0], [0, 9]], 2, math.sqrt(0.5)),  # two of a class must stay together
        ([[9, 0], [9, 0], [0, 9], [0, 9], [4, 4]], 2, 0.0),  # sizes 2, 2, 1
    ],
)
def test_small_fleets_are_grouped_as_well_as_can_be(counts: list[list[int]], size: int, expected: float) -> None:
    labels = dict(zip("abcdefgh", counts, strict=False))
    assert total(labels, group_by_labels(labels, size)) == pytest.approx(expected, abs=1e-12)


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
"""How far from the best the search may ever end, per group; a group of one class is at most 0.82 from uniform here. How
far it does end as a rule says the next test."""


@pytest.mark.parametrize("skewed", [False, True])
def test_the_search_ends_near_the_best_as_a_rule(skewed: bool) -> None:
    """200 fixed fleets of 4 to 8 devices, against brute force. Measured: a mean gap per group of 0.0012 and 0.0018, the
    best itself in 169 and 183, at worst 0.028 and 0.064."""
    chance = random.Random(0)
    gaps = [gap_per_group(chance, skewed) for _ in range(200)]
    assert sum(gaps) / len(gaps) < 0.003
    assert sum(gap < 1e-9 for gap in gaps) >= 160
    assert max(gaps) < 0.08


def gap_per_group(chance: random.Random, skewed: bool) -> float:
    """How far from the best the groups of a fleet drawn by `chance` are; `skewed`: most samples are of one class."""
    devices, size = chance.randint(4, 8), chance.choice([2, 3, 4])
    bounds = [
        [(5, 20) if skewed and label == number % CLASSES else (0, 3 if skewed else 20) for label in range(CLASSES)]
        for number in range(devices)
    ]
    labels = {name: [chance.randint(*each) for each in row] for name, row in zip("abcdefgh", bounds, strict=False)}
    groups, sizes = group_by_labels(labels, size), group_sizes(devices, size)
    best = min(total(labels, each) for each in partitions(sorted(labels), sizes))
    return (total(labels, groups) - best) / len(groups)


@given(fleets)
def test_the_order_in_which_devices_are_named_does_not_matter(labels: dict[str, list[int]]) -> None:
    assert group_by_labels(labels, 2) == group_by_labels(dict(sorted(labels.items(), reverse=True)), 2)
