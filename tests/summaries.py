"""Summaries for tests: as `summary.json` has them, and with figures that were made up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from orchestrator.records.account import summarise
from orchestrator.records.summary import Summary
from orchestrator.records.types import Record, RunStarted
from tests.synthetic import Synthetic


def summarised(records: Iterable[Record]) -> dict[str, Any]:
    """The figures of a run by the names of `summary.json`."""
    return summarise(records).as_dict()


def changed(summary: Summary, **figures: Any) -> Summary:
    """With other figures, by the names of `summary.json`."""
    return Summary.of_dict(summary.as_dict() | figures)


def timed(method: str, seed: int, time: float | None) -> Summary:
    """Of a made-up run that took so long to its target; None: it did not reach it."""
    records = [
        msgspec.structs.replace(r, seed=seed) if isinstance(r, RunStarted) else r
        for r in Synthetic(method=method).records
    ]
    return changed(summarise(records), time_to_target_s=time)
