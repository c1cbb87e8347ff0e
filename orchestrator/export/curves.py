"""The figures of a run's rounds as points of curves, for tools that draw them. The step is the round."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime

from orchestrator.records.summary import Summary

Point = tuple[str, float, int, float]
"""Tag, value, step, wall time in seconds since 1970."""

_ABOUT = ("run", "method", "seed", "backend", "enforcement", "dilation", "calibrated", "speed", "grain", "ended")


def about(summary: Summary) -> dict[str, str]:
    """What the run is, and how far its seconds can be trusted."""
    return {name: str(getattr(summary, name)) for name in _ABOUT}


def began_s(summary: Summary) -> float:
    """When the run began, in seconds since 1970."""
    return datetime.fromisoformat(summary.started).timestamp()


def points(summary: Summary) -> Iterator[Point]:
    """Every number of every round. Wall times are the run's start plus the time axis (divided by the dilation)."""
    rounds = summary.rounds
    named: dict[str, Sequence[float | None]] = {
        "accuracy/test": [row.accuracy for row in rounds],
        "loss/test": [row.loss for row in rounds],
        "round/seconds": [row.round_s for row in rounds],
        "round/straggler_gap_s": [row.straggler_gaps_s for row in rounds],
        "round/waited_device_s": [row.waited_s for row in rounds],
        "round/merged": [row.merged for row in rounds],
        "round/timeline_residual": [row.timeline_residual for row in rounds],
    }
    for name in summary.extra_names:
        named[re.sub(r"[^\w.\-: /]", "_", f"extra/{name}")] = [row.extra.get(name) for row in rounds]
    named |= {f"cut/{name}": device.cut for name, device in summary.devices.items()}
    named |= {f"device_s/{name}": device.actual_s for name, device in summary.devices.items()}
    for index, row in enumerate(rounds):
        for tag, values in named.items():
            if (value := values[index]) is not None:
                yield tag, float(value), index + 1, began_s(summary) + row.elapsed_s
