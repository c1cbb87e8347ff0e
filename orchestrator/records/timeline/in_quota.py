"""What share of tasks, batches and requests used no more CPU time than one period of the quota gives, and how much of
its own work a device's quota stopped. Pure.

A quota alone does not slow such work: after a rest it is done at the full speed of the host.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from edgebed.device.phases import OWN_WORK
from edgebed.wire.messages import Report
from orchestrator.records.run_index import RunFacts
from orchestrator.records.words.formatting import percent

UNSLOWED = 0.05
"""Share of the batches from which on times under a quota without pacing are called doubtful."""


class InQuota:
    """Counts of one or many devices. Reports of older versions, and of simulated devices, count nothing."""

    def __init__(self, reports: Iterable[Report] = ()) -> None:
        self._tasks = self._tasks_in = self._pieces = self._pieces_in = 0
        for report in reports:
            self.add(report)

    def add(self, report: Report) -> None:
        """The report of one task."""
        if not report.pieces or report.quota_s <= 0:
            return
        self._tasks += 1
        self._tasks_in += report.cpu_s <= report.quota_s
        self._pieces += report.pieces
        self._pieces_in += report.pieces_in_quota

    @property
    def tasks(self) -> float | None:
        """Share of the tasks; None where nothing was counted."""
        return self._tasks_in / self._tasks if self._tasks else None

    @property
    def pieces(self) -> float | None:
        """Share of the batches, or of the requests of a device that serves."""
        return self._pieces_in / self._pieces if self._pieces else None


def throttled_share(run: RunFacts, device: str) -> float | None:
    """Share of a device's own work for which its CPU quota stopped it; None: it never reported any.

    Only the sum over many phases is meaningful: the kernel counts a stop when it ends, which may be in the next phase.
    It also adds up the CPUs that it stopped, so several threads may be stopped for longer than they worked: at most 1.
    """
    facts = [session.devices[device] for session in run.sessions if device in session.devices]
    phases = [phase for one in facts for _, phase in one.phases if phase.name in OWN_WORK]
    length = sum(phase.end_ns - phase.start_ns for phase in phases)
    stopped = sum(phase.throttled_ns for phase in phases)
    return min(1.0, stopped / length) if stopped and length else None


def sentence(summary: dict[str, Any]) -> str:
    """What the share of batches means for the times of a run; empty where nothing was counted."""
    share, grain = summary.get("batches_in_quota_share"), summary.get("grain")
    if share is None:
        return ""
    said = f"{percent(share)} of the batches used no more CPU time than one period of the quota gives"
    if grain == "pacing":
        return f"{said}; pacing held them as long as a device of that speed needs"
    return f"{said}, so the quota did not slow them as a device of that speed would be (grain: {grain})"
