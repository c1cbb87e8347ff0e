"""Rows of a calibration as report, live page and terminal show them. Pure."""

from __future__ import annotations

from orchestrator.records.types import Calibrated
from orchestrator.records.words.formatting import NONE, quantity, signed_percent
from orchestrator.records.words.vocabulary import MEASURED


def calibration_row(row: Calibrated) -> list[str]:
    """A cell per column of CALIBRATION. What is not judged is no limit, and has no error."""
    words, beside = MEASURED.get(row.quantity, (row.quantity, ""))
    verdict = ("holds" if row.passed else "FAILS") if row.judged else f"for information: {beside}" if beside else ""
    return [
        row.device,
        words,
        row.condition,
        quantity(row.requested, row.unit) if row.requested else "no limit",
        quantity(row.measured, row.unit),
        signed_percent(row.error) if row.requested and row.judged else NONE,
        f"{verdict} {row.cause}".strip(),
    ]
