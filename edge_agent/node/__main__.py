"""Starts the helper of a node, in a container of a Swarm service."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from edge_agent.node.helper import Helper
from edge_agent.node.settings import read_settings

SECRET = Path("/run/secrets/node.json")


def main() -> None:
    try:
        why = asyncio.run(Helper(read_settings(SECRET)).run())
    except OSError as error:
        why = str(error)
    sys.exit(f"node helper: {why}")


if __name__ == "__main__":
    main()
