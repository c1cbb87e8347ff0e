"""Yogi's step against numbers worked by hand, and what it leaves to the average."""

from __future__ import annotations

import pytest
import torch

from edgebed.methods.base import Contribution
from edgebed.methods.fedyogi import FedYogi
from edgebed.models.staged import Weights
from edgebed.wire.messages import Assignment
from orchestrator.testing.rounds import make_method, small_model

BIAS, MEAN, COUNT, HEAD = "md1.conv.bias", "md1.norm.running_mean", "md1.norm.num_batches_tracked", "head1.fc.bias"


def full(value: float) -> Weights:
    state = small_model().weights()
    return {n: torch.full_like(w, value) for n, w in state.items() if not n.startswith("head")}


def contribution(device: str, samples: int, weights: Weights) -> Contribution:
    assignment = Assignment(device, {}, 4, (1, 6, 6), 4, "output")
    return Contribution(device, samples, assignment, weights, {})


def method() -> FedYogi:
    made = make_method("fedyogi")
    assert isinstance(made, FedYogi)
    return made


def test_two_steps_worked_by_hand() -> None:
    """w = 0, Δ = 0.3 (samples 1 and 3, weights 0 and 0.4): m = 0.03, v = 1e-6 + 0.01·0.09 = 9.01e-4 as Δ² > v.
    Then Δ = 0: v keeps its value, m = 0.027."""
    yogi, start = method(), {**small_model().weights(), **full(0.0)}
    first = yogi.merge(start, [contribution("a", 1, full(0.0)), contribution("b", 3, full(0.4))])
    w1 = 0.01 * 0.03 / (9.01e-4**0.5 + 1e-3)
    assert first[BIAS].tolist() == pytest.approx([w1] * 3, rel=1e-5)
    second = yogi.merge(first, [contribution("a", 1, dict(first))])
    assert yogi.v[BIAS].tolist() == pytest.approx([9.01e-4] * 3, rel=1e-5)
    assert second[BIAS].tolist() == pytest.approx([w1 + 0.01 * 0.027 / (9.01e-4**0.5 + 1e-3)] * 3, rel=1e-5)


def test_v_shrinks_by_the_square_where_the_gradient_is_small() -> None:
    """v = 0.5, Δ = 0.1: v − 0.01·0.01 = 0.4999; Adam's rule would give 0.4951."""
    yogi, start = method(), {**small_model().weights(), **full(0.0)}
    yogi.v = {BIAS: torch.full((3,), 0.5)}
    yogi.merge(start, [contribution("a", 1, full(0.1))])
    assert yogi.v[BIAS].tolist() == pytest.approx([0.4999] * 3)


def test_statistics_follow_the_average_counters_the_maximum_and_untrained_heads_stay() -> None:
    yogi, start = method(), {**small_model().weights(), **full(0.0)}
    merged = yogi.merge(start, [contribution("a", 1, full(1.0)), contribution("b", 1, full(3.0))])
    assert merged[MEAN].tolist() == [2.0] * 3
    assert merged[COUNT] == 3
    assert merged[HEAD] is start[HEAD]
    assert HEAD not in yogi.m
