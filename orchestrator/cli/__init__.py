"""The command line. A file per command holds its function `command`, or its subcommands as `commands`. An error prints
a message and a hint."""

from __future__ import annotations

import importlib
import os
import pkgutil
import platform
import sys
from importlib import metadata
from typing import Annotated, NoReturn

import typer
from rich.markup import escape

from edgebed.errors import EdgebedError, FileError, said
from orchestrator.cli.console import log
from orchestrator.runs.signals import ending_alike


def _version(wanted: bool) -> None:
    if wanted:
        parts = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "msgspec"))
        print(f"edgebed {metadata.version('edgebed')} (Python {platform.python_version()}, {parts})")
        raise typer.Exit


def build(wanted: str = "") -> typer.Typer:
    """The command line, built from the files of this package.

    Args:
        wanted: build only this command, if there is one of this name, so that it starts sooner: each file is named as
            its command, and most load torch. Otherwise all commands are built.
    """
    app = typer.Typer(
        name="edgebed",
        help="Measure split and federated learning on devices whose limits are enforced and verified.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    names = [info.name for info in pkgutil.iter_modules(__path__)]
    wanted = wanted.replace("-", "_")
    for file in [wanted] if wanted in names else names:
        module, name = importlib.import_module(f"{__name__}.{file}"), file.replace("_", "-")
        if hasattr(module, "commands"):
            app.add_typer(module.commands, name=name)
        elif hasattr(module, "command"):
            app.command(name)(module.command)
    return app


def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


def main() -> None:
    """Entry point of `edgebed`. Exit codes: docs/cli.md."""
    try:
        with ending_alike():
            build("".join(sys.argv[1:2]))()
    except EdgebedError as error:
        _fail(error)
    except KeyboardInterrupt:
        log.print("edgebed: interrupted")
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output (such as `| head`) has ended, so there is nobody to print to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        _fail(FileError.of(error))


def _fail(error: EdgebedError) -> NoReturn:
    log.print(f"[bold red]edgebed:[/] {escape(said(error))}", highlight=False, soft_wrap=True)
    if error.hint:
        log.print(f"[bold]Hint:[/] {escape(said(error.hint))}", highlight=False, soft_wrap=True)
    sys.exit(error.exit_code)
