"""`edgebed-agent`: a command of a board that joins a boards service, or the agent of one device of a fleet.

The two load different packages: a board that waits for work does not load torch, an agent in a container no
`cryptography`.
"""

from __future__ import annotations

import sys

from edge_agent.exits import exit_on_error

BOARD_COMMANDS = ("join", "leave", "run")


def main() -> None:
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in BOARD_COMMANDS:
        _board(arguments or ["run"])
    else:
        from edge_agent import __main__

        __main__.main()


def _board(arguments: list[str]) -> None:
    from edge_agent.board import command

    with exit_on_error():
        command.main(arguments)


if __name__ == "__main__":
    main()
