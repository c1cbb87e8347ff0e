"""Quantities of a paper's tables from the summary of a run: seconds, bytes and rounds to an accuracy, accuracies. Pure.

Seconds are divided by the dilation, as in the summary. None: the run did not reach it.
"""

from __future__ import annotations

from collections.abc import Callable

from edgebed.errors import UsageError
from orchestrator.records.summary import Summary

COMPUTE = ("compute", "decode", "encode")
COMMUNICATION = ("download", "upload_tail", "blocked", "reply_wait")


def quantity(name: str, summary: Summary, target: float | None) -> float | None:
    """One quantity of a run.

    Args:
        target: accuracy that the quantities "to target" refer to; None: the run's own.

    Raises:
        UsageError: there is no such quantity.
    """
    try:
        measure = QUANTITIES[name]
    except KeyError:
        raise UsageError(f"there is no quantity {name!r}", hint=f"choose one of: {', '.join(QUANTITIES)}") from None
    return measure(summary, summary.target_accuracy if target is None else target)


def rounds_to(summary: Summary, target: float) -> float | None:
    """Number of the first round (from 1) whose accuracy is the target or more."""
    accuracies = enumerate((row.accuracy for row in summary.rounds), 1)
    reached = (i for i, accuracy in accuracies if accuracy is not None and accuracy >= target)
    return next(reached, None)


def time_to(summary: Summary, target: float) -> float | None:
    rounds = rounds_to(summary, target)
    return None if rounds is None else summary.rounds[int(rounds) - 1].elapsed_s


def bytes_to(summary: Summary, target: float) -> float | None:
    """Bytes in both directions of all devices until the target; None: not reached."""
    rounds = rounds_to(summary, target)
    return None if rounds is None else float(sum(row.bytes for row in summary.rounds[: int(rounds)]))


def _share_to(names: tuple[str, ...]) -> Callable[[Summary, float], float | None]:
    """Seconds that the usual straggler spent in these phases until the target; all rounds count as equally long."""

    def measure(summary: Summary, target: float) -> float | None:
        rounds, device = rounds_to(summary, target), usual_straggler(summary)
        if rounds is None or device is None:
            return None
        spent = sum(summary.devices[device].phase_s.get(name, 0.0) for name in names)
        return float(spent * rounds / len(summary.rounds))

    return measure


def usual_straggler(summary: Summary) -> str | None:
    """The device that was the straggler most often; of several, the first by name."""
    named = [row.straggler for row in summary.rounds if row.straggler is not None]
    return max(sorted(set(named)), key=named.count, default=None)


QUANTITIES: dict[str, Callable[[Summary, float], float | None]] = {
    "time_to_target_s": time_to,
    "rounds_to_target": rounds_to,
    "bytes_to_target": bytes_to,
    "compute_s": _share_to(COMPUTE),
    "communication_s": _share_to(COMMUNICATION),
    "round_s": lambda summary, _: summary.round_s_median,
    "best_accuracy": lambda summary, _: summary.best_accuracy,
    "test_accuracy": lambda summary, _: summary.test_accuracy,
    "final_accuracy": lambda summary, _: summary.final_accuracy,
    "straggler_gap_s": lambda summary, _: summary.straggler_gap_s,
}
