"""Devices and servers that keep a reference's time: how late they were, who did not hold, and what share of their work
the reference has recorded. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from orchestrator.records.run_index import RoundFacts

CLOCKS_S = 0.02
"""By which an event may be early because of clocks, and of settings on their way to a device."""

LATE_SHARE = 0.01
"""Of a round's seconds. A round whose devices were later than that is not one of devices of the reference's speed, and
a task whose events were earlier is none that was held."""


class HeldTask(msgspec.Struct, array_like=True):
    """A task of such a device, or the server's work of a round: seconds by which an event was late, and early, at most,
    divided by the dilation, and CPU seconds on the reference by the origin of their costs."""

    late_s: float
    reference_s: dict[str, float]
    early_s: float = 0.0


def held_task(facts: RoundFacts, device: str) -> HeldTask | None:
    """None: it keeps no reference's time, or has sent no update. What the orchestrator judged counts, and what the
    device says only where it could not."""
    update, done = facts.updates.get(device), facts.done.get(device)
    if update is None or not update.report.reference_s:
        return None
    late_s, early = (None, None) if done is None else (done.late_s, done.early_s)
    late_s = update.report.late_s if late_s is None else late_s
    return HeldTask(late_s / facts.dilation, update.report.reference_s, (early or 0.0) / facts.dilation)


def held_server(facts: RoundFacts) -> HeldTask | None:
    """Of the server's work in a round. None: it keeps no reference's time, or had no work."""
    spent = [step.spent for step in facts.steps] + [work.spent for work in facts.half_work]
    known = [HeldTask(each.late_s / facts.dilation, each.reference_s) for each in spent if each and each.reference_s]
    return HeldTask(max(task.late_s for task in known), by_origin(known)) if known else None


def late_rounds(rounds: Iterable[tuple[float | None, float | None]]) -> int | None:
    """Number of the rounds that were late, from late seconds and length of each; None where no reference is kept."""
    known = [(late_s, length_s) for late_s, length_s in rounds if late_s is not None and length_s]
    return sum(late_s > LATE_SHARE * length_s for late_s, length_s in known) if known else None


def early_s(tasks: Iterable[tuple[HeldTask | None, float | None]]) -> float:
    """By how much a device's tasks were early at most, from each task and its seconds; 0 where it held all of them."""
    known = [(task.early_s, length_s) for task, length_s in tasks if task is not None and length_s]
    return max((early for early, length_s in known if early > max(LATE_SHARE * length_s, CLOCKS_S)), default=0.0)


def by_origin(tasks: Iterable[HeldTask | None]) -> dict[str, float]:
    """CPU seconds of all tasks on the reference, by the origin of their costs."""
    found: dict[str, float] = {}
    for task in tasks:
        for origin, cpu_s in (task.reference_s if task is not None else {}).items():
            found[origin] = found.get(origin, 0.0) + cpu_s
    return found
