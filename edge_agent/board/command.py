"""`edgebed-agent join | run | leave`: the commands of a board that joins a boards service."""

from __future__ import annotations

import argparse
import asyncio
import getpass
import signal
import sys
from typing import Any

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
    lines = ("edgebed-agent join 192.168.1.10:7443 -", "edgebed-agent run", "edgebed-agent leave")
    about = "The program of Edgebed on a device. On a board: join, then run."
    whole = argparse.ArgumentParser("edgebed-agent", description=about, **_examples(*lines))
    commands = whole.add_subparsers(dest="command", required=True, title="commands", metavar="COMMAND")

    def add(name: str, does: str, *lines: str) -> argparse.ArgumentParser:
        text = f"{does[0].upper()}{does[1:]}."
        return commands.add_parser(name, help=does, description=text, **_examples(*lines))

    joining = add(
        "join", "join a boards service: `edgebed boards invite` prints the command", lines[0], f"{lines[0]} --service"
    )
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
    add("run", "connect, and wait for work; the command without arguments does so too", lines[1])
    add("leave", "undo join: revoke the certificate, remove key, folder and systemd unit", lines[2])
    add("device", "the agent of one device, which a fleet starts by itself; it has options of its own")
    return whole


def _examples(*lines: str) -> dict[str, Any]:
    """They end a help as they stand here."""
    text = "\n".join(["examples:", *(f"  {line}" for line in lines)]) if lines else None
    return {"epilog": text, "formatter_class": argparse.RawDescriptionHelpFormatter}


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
