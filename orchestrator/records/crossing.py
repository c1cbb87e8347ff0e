"""When a run crossed an accuracy: the one place that says so. Pure."""

from __future__ import annotations

from collections.abc import Iterable


def time_to(evaluated: Iterable[tuple[float, float | None]], target: float) -> float | None:
    """Seconds at which the line between two evaluations crosses `target`; None where no evaluation reached it.

    Weights are tested at the end of a round at most, so the first evaluation that shows the target comes up to a round
    after it was reached. Between the last evaluation below it and that one, accuracy counts as a straight line. Where
    the first evaluation of all reaches it, nothing is known before, and its own time is given.

    Args:
        evaluated: end of a round in seconds and accuracy (0..1), in the order of time; None: not evaluated.

    Examples:
        >>> time_to([(1.0, 0.5), (2.0, None), (3.0, 1.0)], 0.75)
        2.0
    """
    before = None
    for at_s, accuracy in evaluated:
        if accuracy is None:
            continue
        if accuracy < target:
            before = at_s, accuracy
        elif before is None:
            return at_s
        else:
            start_s, start = before
            return start_s + (at_s - start_s) * (target - start) / (accuracy - start)
    return None
