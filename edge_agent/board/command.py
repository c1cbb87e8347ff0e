"""`edgebed-agent join | leave | run`: the commands of a board that joins a boards service."""

from __future__ import annotations

import argparse
import asyncio
import getpass
import signal
import sys

from edge_agent.board.client import Service
from edge_agent.board.join import join, leave, parse_address, unit
from edge_agent.board.keystore import Keystore
from edge_agent.board.standby import Standby
from edgebed.state import board_folder


def main(arguments: list[str]) -> None:
    """Raises EdgebedError, KeyboardInterrupt."""
    given = parser().parse_args(arguments)
    keys = Keystore(board_folder())
    if given.command == "join":
        token = _asked() if given.token == "-" else given.token
        join(Service(*parse_address(given.address)), token, keys, say, allow_code=given.allow_code)
        say(unit(keys.folder).install() if given.service else "edgebed-agent run connects this board")
    elif given.command == "leave":
        leave(keys, say)
    else:
        asyncio.run(_run(Standby(keys, say)))


def parser() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser(prog="edgebed-agent", description="A board of Edgebed.")
    commands = whole.add_subparsers(dest="command", required=True)
    joining = commands.add_parser("join", help="join a boards service: `edgebed boards invite` prints the command")
    joining.add_argument("address", metavar="HOST:PORT", help="of the service, as `edgebed boards invite` prints it")
    joining.add_argument(
        "token",
        metavar="TOKEN",
        help="works once; '-' asks for it, so that it is in no list of processes, nor in the shell's history",
    )
    joining.add_argument(
        "--allow-code",
        action="store_true",
        help="run the plug-ins (methods and models) that this service sends; without it, only those installed",
    )
    joining.add_argument("--service", action="store_true", help="write a systemd unit that connects from boot on")
    commands.add_parser("leave", help="undo join: revoke the certificate, remove key, folder and systemd unit")
    commands.add_parser("run", help="connect, and wait for work; the command without arguments does so too")
    return whole


def _asked() -> str:
    return getpass.getpass("token: ") if sys.stdin.isatty() else sys.stdin.readline()


async def _run(standby: Standby) -> None:
    """SIGTERM ends it as Ctrl-C does."""
    task = asyncio.ensure_future(standby.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def say(line: str) -> None:
    print(f"edgebed-agent: {line}", file=sys.stderr, flush=True)
