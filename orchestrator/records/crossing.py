"""When a run crossed an accuracy: the one place that says so. Pure."""

from __future__ import annotations

from collections.abc import Iterable


def time_to(evaluated: Iterable[tuple[float, float | None]], target: float) -> float | None:
    """Seconds at which the line between the last evaluation below `target` and the first one at or above it crosses it;
    the first evaluation's own time where that reaches it, as nothing is known before; None where none does.

    Args:
        evaluated: end of a round in seconds and accuracy (0..1), in the order of time; None: not evaluated.
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
