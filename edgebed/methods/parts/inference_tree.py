"""The tree of nodes of a collaborative inference system, and the rates at which its exits serve. Pure.

papers.md §4; Kaplan et al., "Federated Learning for Collaborative Inference Systems: The Case of Early Exit Networks",
§3.1. A node serves what it is sure of at its largest exit and forwards the rest to its parent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec

from edgebed.errors import UsageError


class Tree(msgspec.Struct, frozen=True):
    """Nodes, children before parents."""

    parents: dict[str, str | None]  # of every node, in an order in which children come first; None for a root
    exits: dict[str, int]  # E_i, the largest exit of each node, counted from 1: one more than the most of its children

    @property
    def depth(self) -> int:
        """E: exits in all."""
        return max(self.exits.values())

    def children(self, node: str) -> list[str]:
        return [child for child, parent in self.parents.items() if parent == node]

    def leaves(self) -> list[str]:
        forwarding = set(self.parents.values())
        return [node for node in self.parents if node not in forwarding]


def layered(nodes: Sequence[str], layers: Sequence[int] = ()) -> Tree:
    """A tree of layers, leaves first. Each layer takes the next nodes in order; the numbers of children within a layer
    differ by at most one.

    Args:
        layers: how many nodes each layer has, as in (4, 2, 1); empty: half as many in each as in the one below, one
            root, three layers at most (the paper has three) **[ours]**.

    Raises:
        UsageError: the layers do not hold each node once, or a layer is larger than the one below.
    """
    sizes = list(layers) or default_layers(len(nodes))
    if sum(sizes) != len(nodes) or min(sizes) < 1 or sizes != sorted(sizes, reverse=True):
        raise UsageError(
            f"layers {sizes} for {len(nodes)} nodes",
            hint="give how many devices each layer has, leaves first, never more above than below: layers: [4, 2, 1]",
        )
    starts = [sum(sizes[:number]) for number in range(len(sizes) + 1)]
    found = [list(nodes[a:b]) for a, b in pairwise(starts)]
    parents: dict[str, str | None] = {}
    for layer, above in zip(found, [*found[1:], []], strict=True):
        for number, node in enumerate(layer):
            parents[node] = above[number * len(above) // len(layer)] if above else None
    return rooted(parents)


def default_layers(nodes: int) -> list[int]:
    """7 -> [4, 2, 1], 3 -> [2, 1], 1 -> [1]."""
    if nodes < 7:
        return [nodes - 1, 1] if nodes > 1 else [1]
    middle = round((nodes - 1) / 3)
    return [nodes - 1 - middle, middle, 1]


def rooted(parents: Mapping[str, str | None]) -> Tree:
    """The tree that `parents` (node -> its parent, or None) describe.

    Raises:
        UsageError: a parent is no node, or nodes are their own ancestors.
    """
    strange = sorted({parent for parent in parents.values() if parent is not None} - set(parents))
    if strange or not parents:
        raise UsageError(f"parents name {', '.join(strange) or 'nobody'}", hint=f"the nodes are: {', '.join(parents)}")
    exits: dict[str, int] = {}
    while len(exits) < len(parents):
        ready = [
            node
            for node in parents
            if node not in exits and all(child in exits for child, parent in parents.items() if parent == node)
        ]
        if not ready:
            circle = ", ".join(sorted(set(parents) - set(exits)))
            raise UsageError(f"{circle} are their own ancestors", hint="give the topmost node no parent")
        for node in ready:
            below = [exits[child] for child, parent in parents.items() if parent == node]
            exits[node] = 1 + max(below, default=0)
    order = sorted(parents, key=lambda node: exits[node])  # stable: within an exit as they were given
    return Tree({node: parents[node] for node in order}, {node: exits[node] for node in order})


# ---- rates -----------------------------------------------------------------------------------------------------------


def transfer_rates(tree: Tree, arrivals: Mapping[str, float], limits: Mapping[str, float]) -> dict[str, float]:
    """λ^t: requests per second that each node forwards: all it gets, up to its limit (footnote 2 of the paper).

    Args:
        arrivals: λ^a of each node in requests per second; 0 where it is not named.
        limits: μ^max of each node; none where it is not named. A root forwards nothing.
    """
    forwarded: dict[str, float] = {}
    for node, parent in tree.parents.items():
        coming = _coming(tree, node, arrivals, forwarded)
        forwarded[node] = 0.0 if parent is None else min(limits.get(node, coming), coming)
    return forwarded


def serving_rates(tree: Tree, arrivals: Mapping[str, float], limits: Mapping[str, float]) -> list[float]:
    """Λ_1..Λ_E: the share of all requests that exit e serves, Σ over its nodes of what they get and do not forward.

    Raises:
        UsageError: no requests arrive.
    """
    forwarded = transfer_rates(tree, arrivals, limits)
    served = [0.0] * tree.depth
    for node, exit in tree.exits.items():
        served[exit - 1] += _coming(tree, node, arrivals, forwarded) - forwarded[node]
    return normalised(served)


def _coming(tree: Tree, node: str, arrivals: Mapping[str, float], forwarded: Mapping[str, float]) -> float:
    return arrivals.get(node, 0.0) + sum(forwarded[child] for child in tree.children(node))


def normalised(rates: Sequence[float]) -> list[float]:
    """The same in shares of 1."""
    total = sum(rates)
    if not total > 0 or min(rates) < 0:
        raise UsageError(f"serving rates {list(rates)}", hint="give rates of 0 or more, one of them above 0")
    return [rate / total for rate in rates]


# ---- who trains which exit -------------------------------------------------------------------------------------------


def exit_chances(largest: int, p: float) -> list[float]:
    """p_{i,1}..p_{i,E_i} of a node whose largest exit is `largest`: p for each smaller exit, the rest for its own.

    Raises:
        UsageError: the smaller exits would take all.
    """
    own = 1 - p * (largest - 1)
    if not 0 <= p < 1 or own <= 0:
        raise UsageError(
            f"p {p:g} for each of {largest - 1} smaller exits", hint=f"choose 0 <= p < {1 / max(1, largest - 1):.3g}"
        )
    return [p] * (largest - 1) + [own]
