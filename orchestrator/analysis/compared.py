"""Runs side by side as a pandas table: the figures that `edgebed compare` prints. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import pandas as pd

from orchestrator.records.compare.comparison import compare
from orchestrator.records.compare.groups import Estimate, Group, group
from orchestrator.records.compare.paired import Paired, paired
from orchestrator.records.summary import Summary


def comparison_table(
    summaries: Sequence[Summary], by: Literal["method", "run"] = "method", baseline: Summary | None = None
) -> pd.DataFrame:
    """One row per method (runs with different seeds taken together) or per run.

    Args:
        baseline: a run of the method that speed-ups refer to; None: `groups.default_baseline`.

    `attrs["notes"]` of the table is the list of what makes the figures doubtful or hard to compare, `attrs["paired"]` a
    list of rows with the ratios of interleaved rounds.
    """
    compared = compare(summaries, baseline)
    rows = compared.rows if by == "run" else [_flat(one) for one in group(summaries, baseline)]
    table = pd.DataFrame([{name: math.nan if value is None else value for name, value in row.items()} for row in rows])
    table.attrs["notes"] = list(compared.notes)
    table.attrs["paired"] = [_flat(one) for one in paired(summaries, baseline)]
    return table


def _flat(one: Group | Paired) -> dict[str, Any]:
    """A group or pair as a row: an estimate becomes three columns, the mean and the two ends of its 95 % interval."""
    row: dict[str, Any] = {}
    for name, value in msgspec.structs.asdict(one).items():
        if isinstance(value, Estimate):
            row |= {name: value.mean, f"{name}_low": value.low, f"{name}_high": value.high}
        else:
            row[name] = value
    return row
