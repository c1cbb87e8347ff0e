"""Where commands print: results to stdout, everything about the way there to stderr."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

console = Console()
log = Console(stderr=True)


def print_whole(table: Table) -> None:
    """A table as wide as its cells are, whatever the terminal's width: an id that is broken cannot be copied."""
    width = Measurement.get(console, console.options.update(max_width=10_000), table).maximum
    Console(width=max(width, console.width)).print(table)


def print_json(value: Any) -> None:
    """One JSON document on stdout, for programs."""
    print(json.dumps(value, indent=2, default=str))
