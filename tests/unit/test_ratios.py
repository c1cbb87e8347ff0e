"""Ratios to a baseline with their intervals, and the quantities of a paper's table."""

from __future__ import annotations

import math
from math import exp, log, sqrt
from statistics import stdev

import pytest

from edgebed.errors import UsageError
from orchestrator.records.account import summarise
from orchestrator.records.compare.quantities import figures_of, quantity
from orchestrator.records.compare.ratios import entries, interval, with_range
from orchestrator.records.words.formatting import fixed
from tests.summaries import changed
from tests.synthetic import Speed, Synthetic

T_975_2 = 4.302652729911275  # Student's t, two degrees of freedom


def test_the_interval_is_students_t_on_the_logarithms() -> None:
    ratios = [1.0, 2.0, 4.0]
    middle, low, high = interval(ratios)
    reach = T_975_2 * stdev([log(r) for r in ratios]) / sqrt(3)
    assert middle == pytest.approx(2.0)
    assert (low, high) == (pytest.approx(2 * exp(-reach)), pytest.approx(2 * exp(reach)))


@pytest.mark.parametrize("ratios", [[1.0, 1e4], [150, 1 / 150], [1e-300, 1e300], [0.0, math.inf]])
def test_an_interval_of_any_width_is_finite_and_can_be_written(ratios: list[float]) -> None:
    middle, low, high = interval(ratios)
    assert 0 <= (low or 0) <= (middle or 0) <= (high or 0) < math.inf
    assert len(with_range(fixed(middle or 0, 2), low, high)) < 50


def test_one_ratio_has_no_interval_and_none_no_middle() -> None:
    assert interval([3.0]) == (pytest.approx(3.0), None, None)
    assert interval([]) == (None, None, None)


def test_ratios_pair_the_same_seed_and_say_how_many_got_there() -> None:
    values = {("a", "c", 1): 10.0, ("a", "c", 2): 40.0, ("b", "c", 1): 20.0, ("b", "c", 2): None}
    a, b = entries(values, ["a", "b"], ["c"], "a", {"a": {"c": 100.0}, "b": {"c": 150.0}})
    assert (a.mean, a.ratio, a.reached, a.runs) == (25.0, 1.0, 2, 2)
    assert (b.mean, b.ratio, b.reached, b.runs) == (20.0, pytest.approx(2.0), 1, 2)
    assert b.paper_ratio == pytest.approx(1.5)


SUMMARY = changed(
    summarise(Synthetic({"x": Speed(), "y": Speed()}).records),
    target_accuracy=0.9,
    accuracy=[0.2, None, 0.6, 0.95],
    elapsed_s=[1.0, 2.0, 3.5, 5.0],
    bytes=[40, 80, 180, 100],
    straggler=["x", "y", "y", None],
    phase_s={"x": {"compute": 99.0}, "y": {"compute": 2.0, "decode": 1.0, "encode": 1.0, "download": 3.0}},
)


@pytest.mark.parametrize(
    ("name", "target", "value"),
    [
        ("time_to_target_s", None, 3.5 + 1.5 * 0.3 / 0.35),
        ("time_to_target_s", 0.5, 2.875),
        ("time_to_target_s", 0.96, None),
        ("rounds_to_target", 0.6, 3),
        ("bytes_to_target", 0.6, 300.0),
        ("compute_s", 0.6, 3.0),
        ("communication_s", 0.9, 3.0),
    ],
)
def test_quantities_of_a_summary(name: str, target: float | None, value: float | None) -> None:
    assert quantity(name, figures_of(SUMMARY), target) == (None if value is None else pytest.approx(value))


def test_an_unknown_quantity_is_refused_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="no quantity 'speed'"):
        quantity("speed", figures_of(SUMMARY), None)
