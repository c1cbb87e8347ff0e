"""Curves of runs, their means over seeds and the bands around them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.records.account import summarise
from orchestrator.records.compare.curves import GRID, Point, Spread, at, band, curve
from tests.summaries import changed
from tests.synthetic import Synthetic

RUN = changed(
    summarise(Synthetic(rounds=4).records),
    elapsed_s=[2.0, 3.0, 5.0, 9.0],
    bytes=[100, 50, 0, 25],
    accuracy=[0.5, None, 0.7, 0.8],
)


def test_rounds_without_evaluation_are_no_points() -> None:
    assert curve(RUN) == [(2.0, 0.5), (5.0, 0.7), (9.0, 0.8)]
    assert curve(RUN, "rounds") == [(1.0, 0.5), (3.0, 0.7), (4.0, 0.8)]


def test_bytes_are_added_up_over_all_rounds() -> None:
    assert curve(RUN, "bytes") == [(100.0, 0.5), (150.0, 0.7), (175.0, 0.8)]


def test_a_curve_never_runs_backwards() -> None:
    shuffled = changed(RUN, elapsed_s=[5.0, 3.0, 2.0, 9.0])
    assert curve(shuffled) == [(2.0, 0.7), (5.0, 0.5), (9.0, 0.8)]


def test_between_its_points_a_curve_is_straight() -> None:
    points = [(1.0, 0.2), (3.0, 0.6)]
    assert [at(points, x) for x in (0, 1, 2, 3, 9)] == pytest.approx([0.2, 0.2, 0.4, 0.6, 0.6])


def test_the_mean_begins_where_all_curves_have_begun_and_keeps_those_that_ended() -> None:
    found = band([[(1.0, 0.2), (3.0, 0.6)], [(2.0, 0.4), (4.0, 0.8)]])
    assert found is not None
    assert found.x == [2.0, 3.0, 4.0]
    assert found.mean == pytest.approx([0.4, 0.6, 0.7])
    assert found.low == pytest.approx([0.4, 0.6, 0.6])
    assert found.high == pytest.approx([0.4, 0.6, 0.8])
    assert found.shared == 3.0


def test_bands_by_deviation_and_by_interval() -> None:
    curves = [[(1.0, value)] for value in (10.0, 12.0, 14.0)]  # s = 2, t(0.975, 2) = 4.30265
    deviation, interval = band(curves, "deviation"), band(curves, "interval")
    assert deviation is not None
    assert interval is not None
    assert (deviation.low, deviation.high) == (pytest.approx([10.0]), pytest.approx([14.0]))
    reach = 4.30265 * 2 / 3**0.5
    assert (interval.low, interval.high) == (pytest.approx([12 - reach]), pytest.approx([12 + reach]))


@pytest.mark.parametrize("spread", ["range", "deviation", "interval"])
def test_the_band_of_two_runs_is_their_range(spread: Spread) -> None:
    found = band([[(1.0, 10.0)], [(1.0, 12.0)]], spread)
    assert found is not None
    assert (found.low, found.high) == ([10.0], [12.0])
    alone = band([[(1.0, 10.0)]], spread)
    assert alone is not None
    assert alone.low == alone.mean == alone.high == [10.0]


def test_a_single_run_has_no_band() -> None:
    found = band([curve(RUN)])
    assert found is not None
    assert found.low == found.mean == found.high == [0.5, 0.7, 0.8]
    assert band([[], []]) is None


CURVES = st.lists(
    st.lists(
        st.tuples(st.floats(0, 1e6), st.floats(0, 1)), min_size=1, max_size=150, unique_by=lambda point: point[0]
    ).map(sorted),
    min_size=1,
    max_size=4,
)


@given(CURVES)
def test_the_mean_lies_within_its_band_whatever_the_curves(curves: list[list[Point]]) -> None:
    found = band(curves)
    assert found is not None
    assert len(found.x) <= GRID
    assert found.x == sorted(found.x)
    assert all(
        low - 1e-9 <= mean <= high + 1e-9 for low, mean, high in zip(found.low, found.mean, found.high, strict=True)
    )
