"""Where commands print: results to stdout, progress and messages to stderr."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Column, Table

console = Console()
log = Console(stderr=True)


def say(line: str) -> None:
    """A message on stderr, as it is: nothing in it is markup, and a line is not broken."""
    log.print(line, highlight=False, soft_wrap=True, markup=False)


def show(line: object) -> None:
    """A result on stdout, as it is."""
    console.print(str(line), highlight=False, soft_wrap=True, markup=False)


def columns(*names: str, no_wrap: bool = False) -> list[Column]:
    """Columns of a table. One whose name begins with `>` stands at the right, as numbers do."""
    return [
        Column(name.removeprefix(">"), justify="right" if name.startswith(">") else "left", no_wrap=no_wrap)
        for name in names
    ]


def print_whole(table: Table) -> None:
    """Print a table as wide as its cells, even if the terminal is narrower: a broken id cannot be copied."""
    width = Measurement.get(console, console.options.update(max_width=10_000), table).maximum
    Console(width=max(width, console.width)).print(table)


def print_json(value: Any) -> None:
    """Print one JSON document to stdout, for programs."""
    print(json.dumps(value, indent=2, default=str))
