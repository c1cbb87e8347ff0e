"""Curves of one quantity over time, rounds or bytes: one per run, and their mean with a band over seeds. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from statistics import fmean, stdev
from typing import Literal

import msgspec

from orchestrator.records.compare.groups import FEWEST, estimate
from orchestrator.records.summary import RoundFigures, Summary

Along = Literal["time", "rounds", "bytes"]
Spread = Literal["range", "deviation", "interval"]

Point = tuple[float, float]
"""(x, y)"""

GRID = 200
"""Points of a mean curve at most."""


class Band(msgspec.Struct, frozen=True):
    """The mean of several curves and what lies around it. All lists have the same length; `low` and `high` equal `mean`
    where there is one curve. `shared` is the last x that all curves reach: behind it those that ended stay at their
    last value."""

    x: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]
    shared: float


Quantity = Callable[[RoundFigures], float | None]
"""Of a round; None: not evaluated, or not known."""


def accuracy(row: RoundFigures) -> float | None:
    return row.accuracy


def curve(summary: Summary, along: Along = "time", quantity: Quantity = accuracy) -> list[Point]:
    """The evaluated rounds of a run in ascending order of x.

    Args:
        along: `time` in seconds (divided by the dilation), `rounds` counted from 1 in the order in which they ended, or
            `bytes` sent in both directions by all devices until then.
    """
    xs = _axis(summary, along)
    ys = [quantity(row) for row in summary.rounds]
    points = [(float(x), float(y)) for x, y in zip(xs, ys, strict=True) if y is not None]
    return sorted(points, key=lambda point: point[0])


def _axis(summary: Summary, along: Along) -> Sequence[float]:
    if along == "time":
        return [row.elapsed_s for row in summary.rounds]
    if along == "rounds":
        return range(1, len(summary.rounds) + 1)
    return list(accumulate(row.bytes for row in summary.rounds))


def band(curves: Sequence[Sequence[Point]], spread: Spread = "range") -> Band | None:
    """Mean and band of curves that are straight between their points. None if no curve has a point.

    The mean begins at the last of the curves' first points. A curve that has ended stays at its last value until the
    longest one ends.

    Args:
        spread: `range` is the least and the greatest curve, `deviation` one standard deviation (n - 1) on both sides,
            `interval` the 95 % interval of the mean by Student's t; of fewer than FEWEST curves always the range.
    """
    known = [points for points in curves if points]
    if not known:
        return None
    begin, end = max(points[0][0] for points in known), max(points[-1][0] for points in known)
    xs = _grid(known, begin, end)
    columns = list(zip(*([at(points, x) for x in xs] for points in known), strict=True))
    ends = [_SPREADS[spread if len(values) >= FEWEST else "range"](values) for values in columns]
    shared = min(points[-1][0] for points in known)
    return Band(xs, [fmean(v) for v in columns], [low for low, _ in ends], [high for _, high in ends], shared)


def _grid(curves: Sequence[Sequence[Point]], begin: float, end: float) -> list[float]:
    """All x of the curves from `begin` on; where these are more than GRID, so many at equal distances."""
    own = sorted({begin, end, *(x for points in curves for x, _ in points if begin <= x <= end)})
    if len(own) <= GRID:
        return own
    return [begin + (end - begin) * index / (GRID - 1) for index in range(GRID)]


def at(points: Sequence[Point], x: float) -> float:
    """The value at x of a curve that is straight between its points and constant outside them."""
    index = bisect_right(points, x, key=lambda point: point[0])
    if index == 0:
        return points[0][1]
    if index == len(points):
        return points[-1][1]
    (x0, y0), (x1, y1) = points[index - 1], points[index]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def _deviation(values: Sequence[float]) -> Point:
    return fmean(values) - stdev(values), fmean(values) + stdev(values)


def _interval(values: Sequence[float]) -> Point:
    found = estimate(values)
    assert found.low is not None
    assert found.high is not None
    return found.low, found.high


_SPREADS: dict[str, Callable[[Sequence[float]], Point]] = {
    "range": lambda values: (min(values), max(values)),
    "deviation": _deviation,
    "interval": _interval,
}
