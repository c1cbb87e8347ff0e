"""The line that a terminal shows for a device that failed, or to which the scenario did something. Pure."""

from __future__ import annotations

from edgebed.errors import printable
from orchestrator.records.types import DeviceOut, Record, ScenarioStep

FAILED = ("lost", "failed", "refused", "diverged")
"""Ways out of a round that are failures; late and cancelled are not: the round's rule says so."""

LONGEST = 240


def failure_line(record: Record) -> str | None:
    """One line for a device that failed: round, name, why; None for any other record."""
    if not isinstance(record, DeviceOut) or record.how not in FAILED:
        return None
    cut = _on_one_line(record.why)
    traced = " (its traceback is in records.jsonl)" if record.trace else ""
    return f"round {record.round + 1}: {record.device} {record.how}: {cut}{traced}"


def scenario_line(record: Record) -> str | None:
    """One line for a step of the scenario: device, what, and why it failed; None for any other record, and where a
    trace only goes on."""
    if not isinstance(record, ScenarioStep) or record.kind == "rate":
        return None
    return f"scenario: {record.device}: {record.asked}" + (
        f" FAILED: {_on_one_line(record.error)}" * bool(record.error)
    )


def _on_one_line(text: str) -> str:
    return printable(" ".join(printable(text, len(text)).split()), LONGEST)
