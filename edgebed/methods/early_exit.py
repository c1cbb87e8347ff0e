"""Federated early exits for collaborative inference (Kaplan et al. 2025, algorithm 1). Pure.

papers.md §4: every round each node i of a tree trains one of its exits, e with probability p_{i,e}, for J steps, and

    w <- w + η_s Σ_{(i,e)} Λ̃_e · |S_i| / |S_{e,p}| · (w_{i,e} - w) / p_{i,e}

which is unbiased: its expectation over the exits drawn is the sum over all pairs with p_{i,e} > 0 (each without the
division). A pair covers the stages before its exit and that exit's head; the last exit is the whole model.

Of batch-norm running statistics, which such a sum could make negative, the mean with the same coefficients is taken,
of counters the maximum **[ours]**. A node whose work is lost leaves the federation for that round: |S_{e,p}| counts
the others, so that the estimate stays unbiased over those that finish, as long as that does not depend on the exit
they drew; an exit whose nodes are all lost has no term, and the others' weights stay as they are **[ours]**. The
momentum of a node's optimizer starts at 0 in every round **[ours]**.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Annotated, Any, Literal

import msgspec
import torch
from torch import Tensor

from edgebed.errors import RunError, UsageError
from edgebed.methods.base import Context, Contribution, DeviceView, Method, Plan, Schedule, assign
from edgebed.methods.parts.aggregation import average
from edgebed.methods.parts.evaluation import Score
from edgebed.methods.parts.exits import (
    Deployment,
    confidence,
    exit_cuts,
    exit_flops,
    exit_logits,
    served_by,
    served_score,
    thresholds,
)
from edgebed.methods.parts.inference_tree import Tree, exit_chances, layered, normalised, rooted, serving_rates
from edgebed.methods.parts.local_training import count_batches
from edgebed.models.staged import Weights
from edgebed.wire.messages import Assignment

Weighting = Literal["equal", "flops_prop", "serving_rate", "balanced_adj"]
EpochOf = Literal["mean", "largest"]
Rate = Annotated[float, msgspec.Meta(ge=0)]


class Pool(msgspec.Struct, frozen=True):
    """Who could take part in a round: samples by node, and with what probability each was drawn."""

    round: int
    samples: dict[str, int]
    chance: float = 1.0


class EarlyExit(Method):
    name = "early-exit"
    one_answer = True
    variants = ({"p": 0.3, "weighting": "balanced_adj", "server_lr": 0.5, "epoch_of": "largest"},)

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """The tree is `layers` (counts, leaves first, over the devices in the fleet's order) or `parents` (child:
        parent). `rates` x, y, z give Λ; without them it follows from `arrivals` λ^a and `limits` μ^max in requests per
        second; without those all exits serve alike. `exits` are the cuts of all exits but the last. `steps` is J; 0:
        what an epoch takes of the node with the most samples (`epoch_of: largest`, as in the paper's tables), or the
        mean over the nodes **[ours]**. `server_lr` is η_s."""

        layers: list[int] = []
        parents: dict[str, str] = {}
        exits: list[int] = []
        weighting: Weighting = "serving_rate"
        rates: list[Rate] = []
        arrivals: dict[str, Rate] = {}
        limits: dict[str, Rate] = {}
        p: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
        steps: Annotated[int, msgspec.Meta(ge=0)] = 0
        epoch_of: EpochOf = "mean"
        server_lr: Annotated[float, msgspec.Meta(gt=0)] = 1.0

    options: Options

    def setup(self, context: Context) -> None:
        super().setup(context)
        self.tree: Tree | None = None
        self._pool = Pool(-1, {})
        self._planned: set[str] = set()
        self._parameters = {name for name, _ in context.model.named_parameters()}
        if context.devices:
            self._grow(context.devices)

    def _grow(self, nodes: Sequence[str]) -> Tree:
        """Build the tree over the fleet, and what follows from it."""
        options = self.options
        if options.parents:
            tree = rooted({node: options.parents.get(node) for node in dict.fromkeys([*nodes, *options.parents])})
        else:
            tree = layered(nodes, options.layers)
        self._nodes = list(nodes)
        self.cuts = exit_cuts(self.context.model, tree.depth, options.exits)
        self.rates = self._rates(tree)
        by_rate = options.weighting in ("equal", "serving_rate")  # and so needs no operations counted
        flops = [1] * tree.depth if by_rate else exit_flops(self.context.model, self.cuts)
        self.weights = exit_weights(options.weighting, self.rates, flops)
        self.chances = {node: exit_chances(largest, options.p) for node, largest in tree.exits.items()}
        self.tree = tree
        return tree

    def _rates(self, tree: Tree) -> list[float]:
        """Λ of the exits."""
        options = self.options
        if options.rates:
            if len(options.rates) != tree.depth:
                raise UsageError(
                    f"rates {options.rates} for {tree.depth} exits", hint="give one rate per exit: rates: [80, 15, 5]"
                )
            return normalised(options.rates)
        if options.limits:
            return serving_rates(tree, self._arrivals(tree), options.limits)
        return [1 / tree.depth] * tree.depth

    def _arrivals(self, tree: Tree) -> dict[str, float]:
        """λ^a: one request per second at every leaf, where none are given; the paper has them at leaves alone."""
        return self.options.arrivals or dict.fromkeys(tree.leaves(), 1.0)

    def deployment(self) -> Deployment:
        """How the exits are to serve."""
        if self.tree is None:
            raise RunError("the tree has no nodes yet", hint="set up the method with the devices of the fleet")
        return Deployment(self.tree, self.cuts, tuple(self.rates), self._arrivals(self.tree))

    # ---- a round ----

    def draw(self, round: int, devices: Sequence[DeviceView], share: float, seed: int) -> list[DeviceView]:
        """Draws as every method does, and keeps what p_{i,e} needs: samples by node, and the share of the devices
        drawn."""
        drawn = super().draw(round, devices, share, seed)
        self._pool = Pool(round, {view.name: view.samples for view in devices}, len(drawn) / len(devices))
        return drawn

    def plan(self, round: int, devices: Sequence[DeviceView], schedule: Schedule) -> Plan:
        self.tree or self._grow(sorted(view.name for view in devices))
        if strange := {view.name for view in devices} - set(self.chances):
            raise RunError(f"{', '.join(sorted(strange))} is no node of the tree", hint="name it in `parents`")
        if self._pool.round != round:
            self._pool = Pool(round, {view.name: view.samples for view in devices})
        self._planned = {view.name for view in devices}
        steps = self.options.steps or epoch_steps(self._pool.samples.values(), schedule, self.options.epoch_of)
        exits = {view.name: self._exit(view.name, round, schedule.seed) for view in devices}
        assignments = {view.name: self._assign(view, schedule, round, exits[view.name], steps) for view in devices}
        notes: dict[str, object] = {
            "exits": exits,
            "rates": self.rates,
            "weights": self.weights,
            "cuts": self.cuts,
            "steps": steps,
        }
        return Plan(assignments, notes=notes)

    def follow(self, round: int, devices: Sequence[DeviceView], plan: Plan) -> None:
        self.tree or self._grow(sorted(view.name for view in devices))
        samples = {view.name: view.samples for view in devices}
        self._pool = Pool(round, samples, len(plan.assignments) / len(devices))
        self._planned = set(plan.assignments)

    def _exit(self, node: str, round: int, seed: int) -> int:
        """The exit that a node trains in a round, 1..E_i, drawn by p_{i,e}."""
        chances = self.chances[node]
        return Random(f"{seed}/exit/{round}/{node}").choices(range(1, len(chances) + 1), chances)[0]

    def _assign(self, view: DeviceView, schedule: Schedule, round: int, exit: int, steps: int) -> Assignment:
        cut = self.cuts[exit - 1]
        whole = cut == len(self.context.model)
        made = assign(
            self.context,
            view,
            schedule,
            round,
            stages=cut,
            objective="output" if whole else "head",
            uploads=("weights",),
            options={"exit": exit},
        )
        return msgspec.structs.replace(made, steps=steps)

    def merge(self, weights: Weights, contributions: Sequence[Contribution]) -> Weights:
        lost = self._planned - {part.device for part in contributions}
        samples = {node: count for node, count in self._pool.samples.items() if node not in lost}
        pairs = [(part.device, exit_of(part.assignment)) for part in contributions]
        shares = coefficients(pairs, samples, self.chances, self.weights)
        parts = [
            (self.options.server_lr * share / self._pool.chance, part.weights)
            for share, part in zip(shares, contributions, strict=True)
        ]
        return step_towards(weights, parts, self._parameters)

    def evaluate(self, weights: Weights, x: Tensor, y: Tensor, accelerator: torch.device) -> Score:
        """Over served requests: each exit serves its most confident share of the test set."""
        logits = exit_logits(self.context.model, weights, self.cuts, x, accelerator)
        return served_score(logits, y.cpu(), self.rates)

    def final(
        self,
        weights: Weights,
        validation: tuple[Tensor, Tensor],
        test: tuple[Tensor, Tensor],
        accelerator: torch.device,
    ) -> Score:
        """Over served requests of the test set, by thresholds with which each exit serves its share of the validation
        part."""
        (x, y), model = test, self.context.model
        held = exit_logits(model, weights, self.cuts, validation[0], accelerator)
        logits = exit_logits(model, weights, self.cuts, x, accelerator)
        return served_by(thresholds(confidence(held), self.rates), logits, y.cpu())

    def state(self) -> dict[str, Any]:
        return {"nodes": self._nodes} if self.tree is not None else {}

    def restore(self, state: Mapping[str, Any], tensors: Weights) -> None:
        if "nodes" in state:
            self._grow(state["nodes"])


def exit_of(assignment: Assignment) -> int:
    exit = assignment.options["exit"]
    assert isinstance(exit, int)
    return exit


def exit_weights(weighting: Weighting, rates: Sequence[float], flops: Sequence[int]) -> list[float]:
    """Λ̃ of the exits, summing to 1. The paper gives no formula for Balanced-adj: the mean of the two **[ours]**."""
    by_flops = normalised(flops)
    match weighting:
        case "equal":
            return [1 / len(rates)] * len(rates)
        case "flops_prop":
            return by_flops
        case "serving_rate":
            return list(rates)
        case "balanced_adj":
            return [(rate + flop) / 2 for rate, flop in zip(rates, by_flops, strict=True)]


def epoch_steps(samples: Iterable[int], schedule: Schedule, epoch_of: EpochOf) -> int:
    """J from the batches of the nodes' local epochs, so that every node makes as many updates (appendix D).

    The paper does not say whose epoch the others are scaled to. `largest`: with that of the node with the most
    samples, smaller nodes go through their samples more often and nobody leaves any out. `mean`: the mean over the
    nodes, rounded up **[ours]**; with an equal partition 2.3 times fewer steps.
    """
    batches = [count_batches(count, schedule) for count in samples]
    return max(batches) if epoch_of == "largest" else math.ceil(sum(batches) / len(batches))


def coefficients(
    pairs: Sequence[tuple[str, int]],
    samples: Mapping[str, int],
    chances: Mapping[str, Sequence[float]],
    weights: Sequence[float],
) -> list[float]:
    """Λ̃_e · |S_i| / |S_{e,p}| / p_{i,e} of each (node, exit).

    Args:
        samples: |S_i| of the federation's nodes, trained this round or not.
        chances: p_{i,1}..p_{i,E_i} by node.
        weights: Λ̃_1..Λ̃_E.
    """
    totals = [
        sum(count for node, count in samples.items() if exit < len(chances[node]) and chances[node][exit] > 0)
        for exit in range(len(weights))
    ]
    return [weights[exit - 1] * samples[node] / totals[exit - 1] / chances[node][exit - 1] for node, exit in pairs]


def step_towards(
    weights: Weights, parts: Sequence[tuple[float, Mapping[str, Tensor]]], parameters: set[str]
) -> Weights:
    """w + Σ c (w_part - w) for parameters, over the parts that hold them; of the rest the mean (`average`)."""
    moving = [(c, part) for c, part in parts if c > 0]
    averaged = average(weights, moving)
    return {
        name: _stepped(value, [(c, part[name]) for c, part in moving if name in part])
        if name in parameters
        else averaged[name]
        for name, value in weights.items()
    }


def _stepped(value: Tensor, parts: Sequence[tuple[float, Tensor]]) -> Tensor:
    if not parts:
        return value
    # float64, and the old value's share taken together, so that coefficients of 1 in all leave nothing of it
    total = (1 - sum(c for c, _ in parts)) * value.to(torch.float64)
    for c, part in parts:
        total += c * part.to(torch.float64)
    return total.to(value.dtype)
