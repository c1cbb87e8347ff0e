"""What share of tasks, batches and requests used no more CPU time than one period of the quota gives. Pure.

A quota alone does not slow such work: after a rest it is done at the full speed of the host.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import astuple

from edgebed.wire.messages import Report
from orchestrator.records.words.formatting import percent

UNSLOWED = 0.05
"""Share of the batches from which on times under a quota without pacing are called doubtful."""


class InQuota(msgspec.Struct, array_like=True):
    """Tasks and batches of one or many devices, and those of them within one period's quota. Reports of older versions,
    and of simulated devices, count nothing."""

    tasks: int = 0
    tasks_in: int = 0
    pieces: int = 0
    pieces_in: int = 0

    def __add__(self, other: InQuota) -> InQuota:
        return InQuota(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: InQuota) -> InQuota:
        return InQuota(*(a - b for a, b in zip(astuple(self), astuple(other), strict=True)))

    @property
    def task_share(self) -> float | None:
        """Share of the tasks; None where nothing was counted."""
        return self.tasks_in / self.tasks if self.tasks else None

    @property
    def piece_share(self) -> float | None:
        """Share of the batches, or of the requests of a device that serves."""
        return self.pieces_in / self.pieces if self.pieces else None


def counted(reports: Iterable[Report]) -> InQuota:
    """Of the reports of tasks."""
    found = InQuota()
    for report in reports:
        if report.pieces and report.quota_s > 0:
            found += InQuota(1, report.cpu_s <= report.quota_s, report.pieces, report.pieces_in_quota)
    return found


def sentence(share: float | None, grain: str) -> str:
    """What the share of batches within one period means for the times of a run; empty where nothing was counted."""
    if share is None:
        return ""
    said = f"{percent(share)} of the batches used no more CPU time than one period of the quota gives"
    if grain == "pacing":
        return f"{said}; the quota alone would not slow them, but pacing did"
    return f"{said}, so the quota did not slow them, and their times are too short (grain: {grain})"
