"""Measured figures beside those of a paper: means over seeds, ratios to a baseline row with intervals. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log, sqrt
from statistics import fmean, stdev

import msgspec

from orchestrator.records.words.formatting import fixed

CONFIDENCE = 0.95

LARGEST = 1e20
"""A ratio beyond it, or below its inverse, counts as this much: the ends of an interval stay finite."""


class Entry(msgspec.Struct, frozen=True):
    """One row and column over the seeds: the measured mean, its ratio to the baseline row, and the paper's figures.

    `ratio` is the geometric mean over the seeds of (this row ÷ baseline row), `low` and `high` its 95 % interval
    (Student's t on the logarithms, pairs of the same seed); None with fewer than two pairs. `reached` of `runs` seeds
    have a value at all.
    """

    row: str
    column: str
    mean: float | None
    reached: int
    runs: int
    ratio: float | None
    low: float | None
    high: float | None
    paper: float | None
    paper_ratio: float | None


def entries(
    values: Mapping[tuple[str, str, int], float | None],
    rows: Sequence[str],
    columns: Sequence[str],
    baseline: str,
    figures: Mapping[str, Mapping[str, float | None]],
) -> list[Entry]:
    """The table of one quantity.

    Args:
        values: by (row, column, seed); None where a run did not get there.
        figures: the paper's, by row and column; whatever is missing is None.
    """
    return [_entry(values, row, column, baseline, figures) for row in rows for column in columns]


def _entry(
    values: Mapping[tuple[str, str, int], float | None],
    row: str,
    column: str,
    baseline: str,
    figures: Mapping[str, Mapping[str, float | None]],
) -> Entry:
    own = {seed: value for (r, c, seed), value in values.items() if (r, c) == (row, column)}
    base = {seed: value for (r, c, seed), value in values.items() if (r, c) == (baseline, column)}
    known = [value for value in own.values() if value is not None]
    ratios = [v / b for seed, v in own.items() if v is not None and (b := base.get(seed)) and v > 0]
    ratio, low, high = interval(ratios) if row != baseline else (1.0 if known else None, None, None)
    paper, paper_base = figures.get(row, {}).get(column), figures.get(baseline, {}).get(column)
    return Entry(
        row,
        column,
        mean=fmean(known) if known else None,
        reached=len(known),
        runs=len(own),
        ratio=ratio,
        low=low,
        high=high,
        paper=paper,
        paper_ratio=paper / paper_base if paper is not None and paper_base else None,
    )


def interval(ratios: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Geometric mean of ratios, which are not negative, and its confidence interval."""
    if not ratios:
        return None, None, None
    logs = [log(min(max(ratio, 1 / LARGEST), LARGEST)) for ratio in ratios]
    middle = fmean(logs)
    if len(logs) < 2:
        return exp(middle), None, None
    reach = student(len(logs) - 1) * stdev(logs) / sqrt(len(logs))
    return exp(middle), exp(middle - reach), exp(middle + reach)


def with_range(text: str, low: float | None, high: float | None, decimals: int = 2) -> str:
    """A figure and its confidence interval, where it has one."""
    return text if low is None or high is None else f"{text} [{fixed(low, decimals)}, {fixed(high, decimals)}]"


def student(freedom: int) -> float:
    """Half the width of the confidence interval in standard errors: the quantile of Student's t distribution."""
    from scipy.special import stdtrit  # its import takes 0.1 s, and every command imports this file

    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))
