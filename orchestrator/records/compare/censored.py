"""Times to target where some runs missed it: restricted means and the log-rank test, with scipy's estimators. Pure.

A run that missed its target is censored at its end: the target would have been reached later, if ever. The Kaplan–Meier
estimate uses that (E. L. Kaplan and P. Meier, J. Am. Stat. Assoc. 53, 1958); the mean of the runs that reached the
target would favour a method that sometimes fails. The area below its curve up to a time is the restricted mean: the
mean seconds until the target, where longer ones count as that time. Its interval is Student's t over the
pseudo-values of the runs (P. K. Andersen, M. G. Hansen and J. P. Klein, Lifetime Data Analysis 10, 2004), which are the
times themselves where none is censored before.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np

from orchestrator.records.summary import Summary


def times(runs: Sequence[Summary]) -> list[tuple[float, bool]]:
    """Of each run its seconds, and whether it had reached the target by then."""
    return [
        (run.total_s, False) if run.time_to_target_s is None else (run.time_to_target_s, True)
        for run in runs
        if run.time_to_target_s is not None or run.total_s > 0
    ]


def horizon(groups: Sequence[Sequence[Summary]]) -> float | None:
    """The seconds up to which the curves of all groups are known, but of those that never reached the target: the least
    of their longest runs, of those whose longest missed it. None where no run of them missed it."""
    known = [found for found in map(times, groups) if any(reached for _, reached in found)]
    if all(reached for found in known for _, reached in found):
        return None
    longest = [
        max(found, key=lambda run: (run[0], not run[1])) for found in known
    ]  # of two at one time the censored one
    return min((at for at, reached in longest if not reached), default=max(at for at, _ in longest))


def restricted(found: Sequence[tuple[float, bool]], until: float) -> list[float]:
    """The pseudo-values of the runs' seconds up to `until`, moved by what their mean is off the restricted mean where
    runs were censored before `until`."""
    whole, count = area(found, until), len(found)
    if count == 1:
        return [whole]
    without = [area([*found[:i], *found[i + 1 :]], until) for i in range(count)]
    return [whole + (count - 1) * (fmean(without) - each) for each in without]


def area(found: Sequence[tuple[float, bool]], until: float) -> float:
    """The restricted mean: below the share of runs that have not reached the target, from 0 to `until`."""
    x, share = curve(found)
    steps = [(0.0, 1.0), *((at, left) for at, left in zip(x, share, strict=True) if at < until)]
    ends = [at for at, _ in steps[1:]] + [until]
    return sum(left * (end - at) for (at, left), end in zip(steps, ends, strict=True))


def curve(found: Sequence[tuple[float, bool]]) -> tuple[list[float], list[float]]:
    """Kaplan–Meier: seconds, and the share of runs that have not reached the target from there on."""
    from scipy.stats import ecdf  # its import takes half a second

    sf = ecdf(_censored(found)).sf
    return sf.quantiles.tolist(), sf.probabilities.tolist()


def log_rank_p(own: Sequence[tuple[float, bool]], other: Sequence[tuple[float, bool]]) -> float | None:
    """The probability of such a difference between two groups that are alike; None where no run reached the target."""
    from scipy.stats import logrank

    if not (own and other and any(reached for _, reached in (*own, *other))):
        return None
    with np.errstate(invalid="ignore"):  # where all runs reach it at one time, the test gives no number
        p = float(logrank(_censored(own), _censored(other)).pvalue)
    return None if np.isnan(p) else p


def _censored(found: Sequence[tuple[float, bool]]) -> Any:
    from scipy.stats import CensoredData

    return CensoredData([at for at, reached in found if reached], right=[at for at, reached in found if not reached])
