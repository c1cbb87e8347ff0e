"""Devices that keep a reference's time: how late they were, and what share of their work it has recorded. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

LATE_SHARE = 0.01
"""Of a round's seconds. A round whose devices were later than that is not one of devices of the reference's speed."""


class HeldTask(msgspec.Struct, array_like=True):
    """A task of such a device: seconds by which its update was late, divided by the dilation, and CPU seconds on the
    reference by the origin of its costs."""

    late_s: float
    reference_s: dict[str, float]


def late_rounds(rounds: Iterable[tuple[float | None, float | None]]) -> int | None:
    """Number of the rounds that were late, from late seconds and length of each; None where no reference is kept."""
    known = [(late_s, length_s) for late_s, length_s in rounds if late_s is not None and length_s]
    return sum(late_s > LATE_SHARE * length_s for late_s, length_s in known) if known else None


def by_origin(tasks: Iterable[HeldTask | None]) -> dict[str, float]:
    """CPU seconds of all tasks on the reference, by the origin of their costs."""
    found: dict[str, float] = {}
    for task in tasks:
        for origin, cpu_s in (task.reference_s if task is not None else {}).items():
            found[origin] = found.get(origin, 0.0) + cpu_s
    return found
