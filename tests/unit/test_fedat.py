"""FedAT's shares and merges, worked by hand."""

from __future__ import annotations

import pytest
import torch

from edgebed.methods.base import Contribution
from edgebed.methods.fedat import FedAT, Memory, opposite_shares
from edgebed.methods.parts.device_speed import Speeds
from edgebed.models.staged import Weights
from edgebed.wire.messages import Assignment
from orchestrator.testing.rounds import SCHEDULE, make_method, small_model, view

NAME = "md1.conv.bias"
VIEWS = [view(name) for name in ("a", "b", "c")]


def full(value: float) -> Weights:
    state = small_model().weights()
    return {n: torch.full_like(w, value) for n, w in state.items() if not n.startswith("head")}


def of(device: str, samples: int, value: float) -> Contribution:
    return Contribution(device, samples, Assignment(device, {}, 4, (1, 6, 6), 4, "output"), full(value), {})


def profiled() -> FedAT:
    """a and b fast, c slow; the common model is all 0."""
    method = make_method("fedat", tiers=2)
    assert isinstance(method, FedAT)
    method.memory = Memory(Speeds(round_s={"a": 1.0, "b": 2.0, "c": 9.0}))
    method.merge({**small_model().weights(), **full(1.0)}, [of("a", 1, 0.0)])
    method.observe(0, [])
    return method


def test_a_tier_gets_the_share_of_the_updates_of_the_one_opposite() -> None:
    assert opposite_shares([7, 2, 1]) == pytest.approx([0.1, 0.2, 0.7])


def test_one_lane_while_profiling_then_one_for_each_tier() -> None:
    assert make_method("fedat").lanes(VIEWS) == {"": VIEWS}
    lanes = profiled().lanes([*VIEWS, view("new")])
    assert {lane: [v.name for v in views] for lane, views in lanes.items()} == {
        "tier 1": ["a", "b"],
        "tier 2": ["c", "new"],
    }
    assert profiled().lanes(VIEWS[:1])["tier 2"] == []


def test_two_updates_of_the_fast_tier_and_one_of_the_slow() -> None:
    """Tier 1: samples 1 and 3 at 0 and 4 give 3; T = (2, 1), shares (1/3, 2/3), w = 1. Then 6: T = (3, 1),
    w = 6/4 = 1.5. Then tier 2 at 2: T = (3, 2), shares (2/5, 3/5), w = 12/5 + 6/5 = 3.6."""
    method = profiled()
    weights = {**small_model().weights(), **full(0.0)}
    merged = []
    for contributions in ([of("a", 1, 0.0), of("b", 3, 4.0)], [of("a", 1, 6.0)], [of("c", 5, 2.0)]):
        weights = method.merge(weights, contributions)
        merged.append(float(weights[NAME][0]))
    assert merged == pytest.approx([1.0, 1.5, 3.6])
    assert method.memory.updates == [3, 2]
    assert method.plan(4, VIEWS, SCHEDULE).notes == {"tiers": {"a": 1, "b": 1, "c": 2}, "updates": [3, 2]}


def test_the_proximal_term_is_an_option() -> None:
    plan = make_method("fedat", mu=0.4).plan(0, VIEWS, SCHEDULE)
    assert {(a.objective, a.options["mu"]) for a in plan.assignments.values()} == {("prox", 0.4)}
