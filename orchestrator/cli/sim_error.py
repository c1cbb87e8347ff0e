"""What `edgebed compare` prints beside its table where one run is a simulation of the other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.markup import escape
from rich.table import Table

from orchestrator.cli.console import console
from orchestrator.records.reader import read
from orchestrator.records.run_index import sort
from orchestrator.records.sim_error import SIMULATED, SimError, sim_error, simulation_and_real
from orchestrator.records.summary import load_summary

SHOWN = 0.005
"""A phase whose error is a smaller share of its device's round is not shown."""


def sim_error_of(folders: Sequence[Path]) -> SimError | None:
    """The error of a simulation, where the folders are one and a real run of the same method."""
    if len(folders) != 2:
        return None
    if sum(load_summary(folder)["enforcement"] == SIMULATED for folder in folders) != 1:
        return None
    pair = simulation_and_real([sort(read(folder / "records.jsonl")) for folder in folders])
    return None if pair is None else sim_error(*pair)


def as_plain(error: SimError) -> dict[str, Any]:
    """For --json."""
    plain: dict[str, Any] = msgspec.to_builtins(error)
    for row, each in zip(plain["rounds"], error.rounds, strict=True):
        row["error"] = each.error
    return plain


def print_sim_error(error: SimError) -> None:
    """Two tables: the rounds in a line, devices and phases in rows."""
    console.print(
        f"Error of the simulation over {len(error.rounds)} rounds: median {error.median:.1%}, "
        f"90th percentile {error.p90:.1%}, all rounds together {error.total_error:+.1%}; "
        f"{error.same_cuts:.0%} of the assignments are the same",
        highlight=False,
        soft_wrap=True,
    )
    table = Table(title="Devices: medians of simulation and real run", header_style="bold")
    for name in ("device", "phase", "simulated", "real", "error", "of its round"):
        table.add_column(name, justify="left" if name in ("device", "phase") else "right")
    for row in error.devices:
        if row.phase != "whole" and abs(row.share) < SHOWN:
            continue
        first = row.phase == "whole"
        relative = f"{row.simulated_s / row.real_s - 1:+.1%}" if row.real_s else "–"
        table.add_row(
            escape(row.device) if first else "",
            row.phase,
            f"{row.simulated_s:.3f} s",
            f"{row.real_s:.3f} s",
            relative,
            f"{row.share:+.1%}",
            style="bold" if first else "",
        )
    console.print(table)
