"""Where commands print: results to stdout, everything about the way there to stderr."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console

console = Console()
log = Console(stderr=True)


def print_json(value: Any) -> None:
    """One JSON document on stdout, for programs."""
    print(json.dumps(value, indent=2, default=str))
