"""`edgebed-agent`: a command of a board that joins a boards service, or the agent of one device of a fleet.

The two load different packages: a board that waits for work does not load torch, an agent in a container no
`cryptography`.
"""

from __future__ import annotations

import os
import sys

from edge_agent.privileges import drop_capabilities
from edgebed.entry import agent, exit_on_error
from edgebed.errors import UsageError
from edgebed.typed import nearest

COMMANDS = ("join", "run", "leave", "device")


def main() -> None:
    arguments = sys.argv[1:]
    with exit_on_error("edgebed-agent"):
        first = arguments[0] if arguments else "run"
        if not first.startswith("-") and first not in COMMANDS:
            near = nearest(first, COMMANDS)
            raise UsageError(f"there is no command {first!r}{near}", hint="edgebed-agent join | run | leave --help")
        if first in ("join", "run", "leave", "-h", "--help"):
            from edge_agent.board import command

            command.main(arguments or ["run"])
        else:
            sys.argv[1:] = arguments[first == "device" :]
            _device()


def _device() -> None:
    """The agent of one device; that of a board that has joined has no rights of root, which only `run` needs. Raises
    UsageError where there is no torch, which is an extra."""
    if "--board-id" in sys.argv and os.geteuid() == 0:
        drop_capabilities()  # before torch starts threads, which would keep them
    try:
        from edge_agent import __main__
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UsageError(
            "torch is not installed; the agent trains with it",
            hint="install the torch that the maker of the board offers, or else the version in docs/boards.md",
        ) from None
    __main__.main()


if __name__ == "__main__":
    agent()
