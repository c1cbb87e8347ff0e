"""Arguments that several commands take alike."""

from __future__ import annotations

from typing import Annotated

import typer

from edgebed.errors import UsageError
from orchestrator.runs.find import complete_run

Runs = Annotated[
    list[str],
    typer.Argument(
        help="Folders of runs, their ids under EDGEBED_RUNS (./runs), or patterns of ids: 'mine*'.",
        autocompletion=complete_run,
    ),
]

Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="Override a key of the file: training.rounds=5. Repeatable.")
]


def numbers(text: str, separator: str, option: str) -> list[float]:
    """Parse positive numbers in an option's text. Raises UsageError."""
    try:
        values = [float(part) for part in text.split(separator)]
    except ValueError:
        values = []
    if not values or not all(0 < value < 1e6 for value in values):
        raise UsageError(f"{option} {text!r}", hint=f"give positive numbers separated by {separator!r}")
    return values
