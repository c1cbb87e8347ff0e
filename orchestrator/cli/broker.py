"""`edgebed broker users|acl`: what a broker of your own needs to have."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Annotated

import typer

from edgebed.errors import FileError
from edgebed.wire.topics import ORCHESTRATOR
from orchestrator.broker.acl import mosquitto_lines
from orchestrator.cli.console import say
from orchestrator.fleet.spec.profile import load_fleet

commands = typer.Typer(help="Prepare a broker of your own for `--broker`.", no_args_is_help=True)


@commands.command()
def users(
    fleet: Annotated[Path, typer.Argument(help="The fleet file.")],
    file: Annotated[Path, typer.Argument(help="The new file of users, for --broker-users.")],
) -> None:
    """Write a user with a random password for the orchestrator and for each device of FLEET."""
    names = (ORCHESTRATOR, *(device.name for device in load_fleet(fleet).here))
    try:
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.writelines(f"{name}:{secrets.token_urlsafe(18)}\n" for name in names)
    except OSError as error:
        raise FileError.of(error, file) from None
    say(f"{len(names)} users in {file}. For Mosquitto: cp {file} passwords && mosquitto_passwd -U passwords")


@commands.command()
def acl() -> None:
    """Print the rights that these users need, as an ACL file of Mosquitto."""
    print("\n".join(mosquitto_lines("+", ours="edgebed/#")), end="")
