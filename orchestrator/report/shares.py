"""What bounded rounds, and what devices waited for, as shares that figures draw. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.records.critical.bound_by import Part
from orchestrator.records.summary import Summary


def seconds_by_bound(parts: Sequence[Part]) -> dict[str, float]:
    """Seconds by kind of bound: those of all devices together."""
    sums: dict[str, float] = {}
    for part in parts:
        sums[part.what] = sums.get(part.what, 0.0) + part.seconds
    return sums


def bound_shares(summary: Summary) -> dict[str, float]:
    """Shares of a run's rounds by kind of bound; empty where they are not known."""
    sums = seconds_by_bound(summary.bound_by.parts)
    whole = sum(sums.values())
    return {what: length / whole for what, length in sums.items()} if whole else {}


def mean_shares(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean over the runs that have any."""
    known = [run for run in runs if run]
    kinds = {kind for run in known for kind in run}
    return {kind: sum(run.get(kind, 0.0) for run in known) / len(known) for kind in kinds}
