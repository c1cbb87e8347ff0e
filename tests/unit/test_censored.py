"""Times to target where runs missed it: Kaplan–Meier by hand, restricted means, the log-rank test."""

from __future__ import annotations

from statistics import fmean

import pytest

from orchestrator.records.compare.censored import area, curve, log_rank_p, restricted

SOME = [(30.0, True), (40.0, False), (60.0, True)]
ALL = [(30.0, True), (40.0, True), (60.0, True)]


def test_the_curve_falls_where_runs_reached_the_target_among_those_left() -> None:
    at, left = curve(SOME)
    assert at == [30, 40, 60]
    assert left == pytest.approx([2 / 3, 2 / 3, 0])


def test_the_restricted_mean_is_the_area_below_the_curve() -> None:
    assert area(SOME, 50) == pytest.approx(30 + 2 / 3 * 20)
    assert area(SOME, 60) == pytest.approx(30 + 2 / 3 * 30)
    assert area(SOME, 20) == 20


def test_where_nothing_is_censored_before_the_pseudo_values_are_the_times() -> None:
    assert restricted(ALL, 50) == pytest.approx([30, 40, 50])
    assert restricted([(30.0, True), (50.0, False), (60.0, True)], 50) == pytest.approx([30, 50, 50])
    assert fmean(restricted(SOME, 60)) == pytest.approx(area(SOME, 60))


def test_a_mean_without_the_censored_runs_would_be_too_small() -> None:
    assert area(SOME, 60) > fmean([30, 60])


def test_the_log_rank_test_by_hand() -> None:
    """Two runs at 1 and 2 s, two that end at 3 s: observed 2, expected 1/2 + 1/3, variance 1/4 + 2/9."""
    from scipy.stats import chi2

    p = log_rank_p([(1.0, True), (2.0, True)], [(3.0, False), (3.0, False)])
    assert p == pytest.approx(chi2.sf((2 - 5 / 6) ** 2 / (1 / 4 + 2 / 9), 1))
    assert log_rank_p([(3.0, False)], [(3.0, False)]) is None
    assert log_rank_p([(3.0, True)], [(3.0, True)]) is None  # nothing to tell them apart
