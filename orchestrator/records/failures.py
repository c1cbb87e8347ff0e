"""The line that a terminal shows for a device that failed. Pure."""

from __future__ import annotations

from orchestrator.records.types import DeviceOut, Record

FAILED = ("lost", "failed", "refused", "diverged")
"""Ways out of a round that are failures; late and cancelled are not: the round's rule says so."""

LONGEST = 240


def failure_line(record: Record) -> str | None:
    """One line for a device that failed: round, name, why; None for any other record."""
    if not isinstance(record, DeviceOut) or record.how not in FAILED:
        return None
    why = " ".join("".join(each if each.isprintable() else " " for each in record.why).split())
    cut = why if len(why) <= LONGEST else f"{why[:LONGEST]}…"
    traced = " (its traceback is in records.jsonl)" if record.trace else ""
    return f"round {record.round + 1}: {record.device} {record.how}: {cut}{traced}"
