"""Where commands print: results to stdout, progress and messages to stderr."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

console = Console()
log = Console(stderr=True)


def print_whole(table: Table) -> None:
    """Print a table as wide as its cells, even if the terminal is narrower: a broken id cannot be copied."""
    width = Measurement.get(console, console.options.update(max_width=10_000), table).maximum
    Console(width=max(width, console.width)).print(table)


def print_json(value: Any) -> None:
    """Print one JSON document to stdout, for programs."""
    print(json.dumps(value, indent=2, default=str))
