"""Reads from words what records of older versions do not hold as data. No other module reads sentences of records.

Version 0.2.0, and development versions of 0.3.0 until 2026-11-22, wrote no `DeviceOut.limit_s` and no
`RunFinished.ending`. This module is needed as long as runs of version 0.2 open (tests/recorded/v0.2). Pure.
"""

from __future__ import annotations

import math
import re

from orchestrator.records.types import DeviceOut, Ending, RunFinished

_LIMIT = re.compile(r"(?:deadline|ceiling) of ([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?) s")
"""In the reason why a device was late. After a second ceiling it names the length of the first one only."""


def limit_of(out: DeviceOut) -> float | None:
    """`DeviceOut.limit_s`, also of older records."""
    if out.limit_s is not None or out.how != "late":
        return out.limit_s
    found = _LIMIT.search(out.why)
    limit_s = math.inf if found is None else float(found[1])
    return limit_s if math.isfinite(limit_s) else None


def ending_of(finished: RunFinished) -> Ending:
    """`RunFinished.ending`, also of older records."""
    if finished.ending is not None:
        return finished.ending
    if finished.why.startswith("error"):
        return "failed"
    return "interrupted" if finished.why == "interrupted" else "finished"
