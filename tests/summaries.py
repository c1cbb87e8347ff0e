"""Summaries for tests: as `summary.json` has them, and with figures that were made up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from orchestrator.records.account import summarise
from orchestrator.records.summary import Summary
from orchestrator.records.types import Record


def summarised(records: Iterable[Record]) -> dict[str, Any]:
    """The figures of a run by the names of `summary.json`."""
    return summarise(records).as_dict()


def changed(summary: Summary, **figures: Any) -> Summary:
    """With other figures, by the names of `summary.json`."""
    return Summary.of_dict(summary.as_dict() | figures)
