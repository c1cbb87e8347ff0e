"""The tree and its rates against cases worked by hand."""

from __future__ import annotations

import pytest

from edgebed.errors import UsageError
from edgebed.methods.parts.inference_tree import (
    Tree,
    default_layers,
    exit_chances,
    layered,
    rooted,
    serving_rates,
    transfer_rates,
)

approx = pytest.approx

SEVEN = ["a", "b", "c", "d", "e", "f", "g"]


def test_seven_nodes_as_in_the_paper() -> None:
    tree = layered(SEVEN, [4, 2, 1])
    assert tree.parents == {"a": "e", "b": "e", "c": "f", "d": "f", "e": "g", "f": "g", "g": None}
    assert tree.exits == {"a": 1, "b": 1, "c": 1, "d": 1, "e": 2, "f": 2, "g": 3}
    assert tree.leaves() == ["a", "b", "c", "d"]
    assert tree.children("e") == ["a", "b"]
    assert layered(SEVEN) == tree


def test_seventeen_nodes_share_their_parents_evenly() -> None:
    tree = layered([str(n) for n in range(17)], [12, 4, 1])
    assert [len(tree.children(str(n))) for n in range(12, 17)] == [3, 3, 3, 3, 4]


@pytest.mark.parametrize(("nodes", "layers"), [(1, [1]), (2, [1, 1]), (3, [2, 1]), (7, [4, 2, 1]), (10, [6, 3, 1])])
def test_layers_that_nobody_names(nodes: int, layers: list[int]) -> None:
    assert default_layers(nodes) == layers


def test_a_parent_has_one_exit_more_than_the_most_of_its_children() -> None:
    tree = rooted({"cloud": None, "edge": "cloud", "leaf": "edge", "near": "cloud"})
    assert tree.exits == {"leaf": 1, "near": 1, "edge": 2, "cloud": 3}
    assert list(tree.parents)[-1] == "cloud", "children come before parents"


@pytest.mark.parametrize("layers", [[4, 2], [1, 2, 4], [4, 3, 0]])
def test_layers_that_do_not_fit_are_refused(layers: list[int]) -> None:
    with pytest.raises(UsageError, match="layers"):
        layered(SEVEN, layers)


@pytest.mark.parametrize("parents", [{"a": "b", "b": "a"}, {"a": "nobody"}, {}])
def test_what_is_no_tree_is_refused(parents: dict[str, str | None]) -> None:
    with pytest.raises(UsageError):
        rooted(parents)


def small() -> Tree:
    """Figure 2's shape: 0, 1, 2 and 3, all below one parent of the next layer."""
    return rooted({"0": "3", "1": "3", "2": "3", "3": None})


def test_transfer_rates_by_hand() -> None:
    """λ^t_0 = min(4, 10), λ^t_1 = min(9, 5), λ^t_2 = 2 (no limit); the root gets 1 of its own and 4 + 5 + 2, and
    forwards nothing."""
    arrivals, limits = {"0": 10.0, "1": 5.0, "2": 2.0, "3": 1.0}, {"0": 4.0, "1": 9.0}
    assert transfer_rates(small(), arrivals, limits) == {"0": 4.0, "1": 5.0, "2": 2.0, "3": 0.0}
    assert serving_rates(small(), arrivals, limits) == approx([6 / 18, 12 / 18])


def test_serving_rates_over_three_layers_by_hand() -> None:
    """Four leaves at 5/s send 1/s each; two edges get 2/s each and send 0.5/s each: 16, 3 and 1 of 20."""
    arrivals = dict.fromkeys("abcd", 5.0)
    limits = dict.fromkeys("abcd", 1.0) | dict.fromkeys("ef", 0.5)
    assert serving_rates(layered(SEVEN, [4, 2, 1]), arrivals, limits) == approx([0.8, 0.15, 0.05])


def test_no_requests_have_no_rates() -> None:
    with pytest.raises(UsageError, match="serving rates"):
        serving_rates(small(), {}, {})


def test_the_chance_of_its_own_exit_is_what_the_smaller_ones_leave() -> None:
    assert exit_chances(3, 0.2) == approx([0.2, 0.2, 0.6])
    assert exit_chances(1, 0.2) == [1.0]
    with pytest.raises(UsageError, match="smaller exits"):
        exit_chances(3, 0.5)
