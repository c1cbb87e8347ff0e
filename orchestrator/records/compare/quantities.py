"""Quantities of a paper's tables: seconds, bytes and rounds to an accuracy, accuracies. Pure.

Seconds are divided by the dilation, as in the summary. None: the run did not reach it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec

from edgebed.errors import UsageError
from orchestrator.records.crossing import time_to
from orchestrator.records.summary import Summary

Accuracy = Annotated[float, msgspec.Meta(ge=0, le=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0, lt=1e12)]
Bytes = Annotated[int, msgspec.Meta(ge=0, le=2**62)]

COMPUTE = ("compute", "decode", "encode")
COMMUNICATION = ("download", "upload_tail", "blocked", "reply_wait")


class RunFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What the quantities of a run follow from. Lists have an entry per finished round; `elapsed_s` counts from the
    first round's start, `bytes` are of all devices in both directions. `straggler_phase_s`: seconds by phase of the
    device that was the straggler most often."""

    target_accuracy: Accuracy
    accuracy: Annotated[list[Accuracy | None], msgspec.Meta(min_length=1)]
    elapsed_s: list[Seconds]
    bytes: list[Bytes]
    test_accuracy: Accuracy | None = None
    round_s_median: Seconds | None = None
    straggler_gap_s: Seconds | None = None
    straggler_phase_s: dict[str, Seconds] = {}

    @property
    def possible(self) -> bool:
        """Whether they have seconds and bytes of each round, and no round ends before an earlier one or takes less than
        a nanosecond."""
        lengths = {len(self.accuracy), len(self.elapsed_s), len(self.bytes)}
        seconds = (*self.elapsed_s, self.round_s_median or 0.0)
        return len(lengths) == 1 and self.elapsed_s == sorted(self.elapsed_s) and not any(0 < s < 1e-9 for s in seconds)

    @property
    def accuracies(self) -> list[float]:
        """Of the rounds that were evaluated."""
        return [accuracy for accuracy in self.accuracy if accuracy is not None]


def figures_of(summary: Summary) -> RunFigures:
    straggler = usual_straggler(summary)
    return RunFigures(
        target_accuracy=summary.target_accuracy,
        accuracy=[row.accuracy for row in summary.rounds],
        elapsed_s=[row.elapsed_s for row in summary.rounds],
        bytes=[row.bytes for row in summary.rounds],
        test_accuracy=summary.test_accuracy,
        round_s_median=summary.round_s_median,
        straggler_gap_s=summary.straggler_gap_s,
        straggler_phase_s={} if straggler is None else summary.devices[straggler].phase_s,
    )


def quantity(name: str, figures: RunFigures, target: float | None) -> float | None:
    """One quantity of a run. `target`: accuracy that the quantities "to target" refer to; None: the run's own. Raises
    UsageError: there is no such quantity."""
    try:
        measure = QUANTITIES[name]
    except KeyError:
        raise UsageError(f"there is no quantity {name!r}", hint=f"choose one of: {', '.join(QUANTITIES)}") from None
    return measure(figures, figures.target_accuracy if target is None else target)


def rounds_to(figures: RunFigures, target: float) -> int | None:
    """Number of the first round (from 1) whose accuracy is the target or more."""
    accuracies = enumerate(figures.accuracy, 1)
    reached = (i for i, accuracy in accuracies if accuracy is not None and accuracy >= target)
    return next(reached, None)


def bytes_to(figures: RunFigures, target: float) -> float | None:
    """Bytes in both directions of all devices until the target; None: not reached."""
    rounds = rounds_to(figures, target)
    return None if rounds is None else float(sum(figures.bytes[:rounds]))


def _share_to(names: tuple[str, ...]) -> Callable[[RunFigures, float], float | None]:
    """Seconds that the usual straggler spent in these phases until the target; all rounds count as equally long."""

    def measure(figures: RunFigures, target: float) -> float | None:
        rounds = rounds_to(figures, target)
        if rounds is None or not figures.straggler_phase_s:
            return None
        spent = sum(figures.straggler_phase_s.get(name, 0.0) for name in names)
        return float(spent * rounds / len(figures.accuracy))

    return measure


def usual_straggler(summary: Summary) -> str | None:
    """The device that was the straggler most often; of several, the first by name."""
    named = [row.straggler for row in summary.rounds if row.straggler is not None]
    return max(sorted(set(named)), key=named.count, default=None)


QUANTITIES: dict[str, Callable[[RunFigures, float], float | None]] = {
    "time_to_target_s": lambda figures, to: time_to(zip(figures.elapsed_s, figures.accuracy, strict=True), to),
    "rounds_to_target": rounds_to,
    "bytes_to_target": bytes_to,
    "compute_s": _share_to(COMPUTE),
    "communication_s": _share_to(COMMUNICATION),
    "round_s": lambda figures, _: figures.round_s_median,
    "best_accuracy": lambda figures, _: max(figures.accuracies, default=None),
    "test_accuracy": lambda figures, _: figures.test_accuracy,
    "final_accuracy": lambda figures, _: figures.accuracies[-1] if figures.accuracies else None,
    "straggler_gap_s": lambda figures, _: figures.straggler_gap_s,
}
