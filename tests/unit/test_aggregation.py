"""Merging by name, and the check of an update."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edgebed.errors import UsageError
from edgebed.methods.base import Contribution
from edgebed.methods.parts.aggregation import average, fault, impossible, merge_by_name, moved, not_finite
from edgebed.models.staged import Weights
from edgebed.wire.messages import Assignment
from orchestrator.testing.rounds import small_model

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def contribution(device: str, samples: int, weights: Weights, server: Weights | None = None) -> Contribution:
    return Contribution(device, samples, Assignment(device, {}, 4, (1, 6, 6), 1, "head"), weights, server or {})


def test_by_samples_and_uniform() -> None:
    weights = {"a": torch.zeros(2)}
    parts = [
        contribution("x", 1, {"a": torch.tensor([0.0, 4.0])}),
        contribution("y", 3, {"a": torch.tensor([4.0, 8.0])}),
    ]
    assert merge_by_name(weights, parts, "samples")["a"].tolist() == [3.0, 7.0]
    assert merge_by_name(weights, parts, "uniform")["a"].tolist() == [2.0, 6.0]


def test_each_name_over_those_who_hold_it_and_the_rest_stays() -> None:
    weights = {name: torch.zeros(1) for name in ("both", "one", "none")}
    parts = [
        contribution("x", 1, {"both": torch.ones(1)}, {"one": torch.full((1,), 7.0)}),
        contribution("y", 1, {"both": torch.full((1,), 3.0)}),
    ]
    merged = merge_by_name(weights, parts, "samples")
    assert {name: value.item() for name, value in merged.items()} == {"both": 2.0, "one": 7.0, "none": 0.0}


def test_where_both_halves_hold_a_name_the_device_counts() -> None:
    merged = merge_by_name(
        {"a": torch.zeros(1)}, [contribution("x", 1, {"a": torch.ones(1)}, {"a": torch.zeros(1)})], "samples"
    )
    assert merged["a"].item() == 1.0


def test_running_statistics_are_averaged_and_counters_take_the_maximum() -> None:
    weights = small_model().weights()
    parts = []
    for device, mean, count in (("x", 1.0, 5), ("y", 3.0, 9)):
        mine = {"md1.norm.running_mean": torch.full((3,), mean), "md1.norm.num_batches_tracked": torch.tensor(count)}
        parts.append(contribution(device, 1, mine))
    merged = merge_by_name(weights, parts, "samples")
    assert merged["md1.norm.running_mean"].tolist() == [2.0, 2.0, 2.0]
    assert merged["md1.norm.num_batches_tracked"].item() == 9
    assert merged["md1.norm.num_batches_tracked"].dtype == torch.int64


@settings(deadline=None)
@given(st.lists(FLOATS, min_size=1, max_size=8), st.integers(1, 10**6))
def test_a_merge_of_one_device_is_that_device_to_the_bit(values: list[float], samples: int) -> None:
    mine = torch.tensor(values, dtype=torch.float32)
    merged = merge_by_name({"a": torch.zeros_like(mine)}, [contribution("x", samples, {"a": mine})], "samples")["a"]
    assert torch.equal(merged.view(torch.int32), mine.view(torch.int32))  # minus zero too
    assert merged.data_ptr() != mine.data_ptr()


@settings(deadline=None)
@given(st.lists(FLOATS, min_size=1, max_size=8), st.lists(st.integers(1, 50_000), min_size=2, max_size=20))
def test_equal_devices_merge_to_themselves_to_the_bit(values: list[float], samples: list[int]) -> None:
    mine = torch.tensor(values, dtype=torch.float32)
    parts = [contribution(f"d{i}", count, {"a": mine.clone()}) for i, count in enumerate(samples)]
    assert torch.equal(merge_by_name({"a": torch.zeros_like(mine)}, parts, "samples")["a"], mine)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 1000), FLOATS), min_size=1, max_size=10))
def test_an_average_lies_between_its_parts(parts: list[tuple[int, float]]) -> None:
    merged = average({"a": torch.zeros(1)}, [(float(n), {"a": torch.tensor([v])}) for n, v in parts])["a"].item()
    assert min(v for _, v in parts) <= merged <= max(v for _, v in parts)


@pytest.mark.parametrize("share", [0.0, -1.0, float("nan")])
def test_a_share_of_nothing_is_refused(share: float) -> None:
    with pytest.raises(UsageError, match="share"):
        average({"a": torch.zeros(1)}, [(share, {"a": torch.ones(1)})])


def test_no_contribution_changes_nothing() -> None:
    assert merge_by_name({"a": torch.ones(1)}, [], "samples") == {"a": torch.ones(1)}


REFERENCE = {"a": torch.zeros(2, 3), "n": torch.tensor(0), "b": torch.zeros(1)}
GOOD = {"a": torch.ones(2, 3), "n": torch.tensor(4)}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, ""),
        ({"a": None}, "'a'"),
        ({"b": torch.zeros(1)}, "not asked for"),
        ({"evil": torch.zeros(1)}, "not asked for"),
        ({"a": torch.ones(3, 2)}, "[3, 2]"),
        ({"a": torch.ones(2, 3, dtype=torch.float64)}, "float64"),
        ({"n": torch.tensor(4.0)}, "float32"),
        ({"a": torch.full((2, 3), float("nan"))}, "not finite"),
        ({"a": torch.tensor([[1.0, 2.0, float("-inf")]] * 2)}, "not finite"),
    ],
)
def test_a_faulty_update_is_named(change: dict[str, torch.Tensor | None], why: str) -> None:
    update = {name: value for name, value in {**GOOD, **change}.items() if value is not None}
    found = fault(REFERENCE, update, ["a", "n"])
    assert (why in found) if why else (found == "")


def test_infinities_that_cancel_and_sums_that_overflow_are_told_apart() -> None:
    assert not_finite({"x": torch.tensor([float("inf"), float("-inf")])})
    assert not not_finite({"x": torch.full((4,), 3e38)})
    assert not not_finite({"n": torch.tensor([1, 2])})
    assert not not_finite({"empty": torch.zeros(0)})


# ---- what no training gives ----


def statistics(**change: object) -> dict[str, torch.Tensor]:
    honest = {
        "bn.weight": torch.ones(3),
        "bn.running_var": torch.ones(3),
        "bn.running_mean": torch.zeros(3),
        "bn.num_batches_tracked": torch.tensor(7),
    }
    return {**honest, **{f"bn.{name}": torch.as_tensor(value) for name, value in change.items()}}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"running_var": [1.0, -1.0, 1.0]}, "variance of -1"),
        ({"num_batches_tracked": 2**62}, "after 5 batches from 7"),
        ({"num_batches_tracked": -1}, "after 5 batches from 7"),
        ({"weight": [1.0, 1e30, 1.0]}, "1e+30"),
        ({"weight": [1.0, -1e30, 1.0]}, "-1e+30"),
        ({"running_mean": [0.0, 0.0, 3e19]}, "3e+19"),
    ],
)
def test_what_no_training_gives_is_named(change: dict[str, object], said: str) -> None:
    assert said in impossible(statistics(), statistics(**change), 5)


def test_what_training_gives_is_possible() -> None:
    assert impossible(statistics(), statistics(num_batches_tracked=12, running_var=[0.0, 1e6, 1.0]), 5) == ""
    assert impossible({"w": torch.zeros(0)}, {"w": torch.zeros(0)}, 5) == ""


def test_how_far_an_update_has_moved() -> None:
    start = {"w": torch.tensor([3.0, 4.0]), "n": torch.tensor(1)}
    assert moved(start, start) == 0
    assert moved(start, {"w": torch.tensor([3.0, 14.0]), "n": torch.tensor(9)}) == pytest.approx(2)
    assert moved({"w": torch.zeros(2)}, {"w": torch.ones(2)}) == math.inf
    assert moved(start, {"w": torch.full((2,), 1e30)}) > 1e29
    state = {"given.optimizer.0.step": torch.tensor(0.0)}
    assert moved({**start, **state}, {**start, "given.optimizer.0.step": torch.tensor(9.0)}) == 0, "it is no weight"
