"""Times to target where runs missed it: Kaplan–Meier by hand, restricted means, the log-rank test."""

from __future__ import annotations

from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.records.compare.censored import area, curve, horizon, log_rank_p, restricted, times
from orchestrator.records.summary import Summary
from tests.summaries import changed, timed

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


# ---- ties, few runs, and runs that never got there ----

RUNS = st.lists(st.tuples(st.sampled_from([1.0, 2.0, 3.0, 5.0]), st.booleans()), min_size=1, max_size=8)


def left_after(found: list[tuple[float, bool]], seconds: float) -> float:
    """Kaplan and Meier's product. Of runs at one time those that reached the target come first."""
    share = 1.0
    for at in sorted({at for at, reached in found if reached and at <= seconds}):
        share *= 1 - found.count((at, True)) / sum(other >= at for other, _ in found)
    return share


@given(RUNS)
def test_curve_and_area_are_those_of_the_product_whatever_the_ties(found: list[tuple[float, bool]]) -> None:
    at, left = curve(found)
    assert left == pytest.approx([left_after(found, each) for each in at])
    assert area(found, 4.0) == pytest.approx(1 + sum(left_after(found, second) for second in (1.0, 2.0, 3.0)))
    assert fmean(restricted(found, 4.0)) == pytest.approx(area(found, 4.0))


def log_rank_by_hand(own: list[tuple[float, bool]], other: list[tuple[float, bool]]) -> float | None:
    """The score test of N. Mantel (1966): the hypergeometric variance, for ties."""
    from scipy.stats import chi2

    whole, score, variance = own + other, 0.0, 0.0
    for at in {at for at, reached in whole if reached}:
        n, n_own = (sum(later >= at for later, _ in side) for side in (whole, own))
        d, d_own = whole.count((at, True)), own.count((at, True))
        score += d_own - d * n_own / n
        variance += d * n_own / n * (1 - n_own / n) * (n - d) / (n - 1) if n > 1 else 0.0
    return float(chi2.sf(score**2 / variance, 1)) if variance else None


@given(RUNS, RUNS)
def test_the_log_rank_test_is_mantels_whatever_the_ties(
    own: list[tuple[float, bool]], other: list[tuple[float, bool]]
) -> None:
    expected = log_rank_by_hand(own, other)
    assert log_rank_p(own, other) == (None if expected is None else pytest.approx(expected))


def test_pseudo_values_keep_the_restricted_mean_beyond_the_longest_run() -> None:
    """Without the run that got there last the others tell nothing: its curve would stay at 1 up to 12 s."""
    found = [(2.0, False), (8.0, False), (9.0, True)]
    assert fmean(restricted(found, 12)) == area(found, 12) == 9
    assert restricted([(30.0, True)], 50) == [30]


def runs(*found: tuple[float, bool]) -> list[Summary]:
    return [
        changed(timed("dtfl", seed, at if reached else None), total_s=at) for seed, (at, reached) in enumerate(found)
    ]


def test_the_horizon_is_where_the_first_curve_is_known_no_longer() -> None:
    known, open_26, open_40 = runs((10.0, True)), runs((9.0, True), (26.0, False)), runs((40.0, False), (30.0, True))
    assert horizon([known]) is None
    assert horizon([open_26, open_40]) == horizon([known, open_40, open_26]) == 26
    assert horizon([runs((5.0, False)), open_40]) == 40  # what never got there has no mean, and bounds nobody's
    assert horizon([runs((5.0, False), (8.0, True)), runs((3.0, True), (12.0, True))]) == 12  # all curves end at 0
    assert horizon([runs((26.0, True), (26.0, False)), open_40]) == 26  # of a tie, one is still to get there


def test_a_run_without_a_round_is_not_a_missed_target() -> None:
    assert times(runs((0.0, False), (5.0, True))) == [(5.0, True)]
