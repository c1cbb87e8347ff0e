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
from orchestrator.cli.command_help import PANELS, Group, dress, examples, panel, refusal
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
        cls=Group,
        help="Measure split and federated learning on devices whose limits are enforced and verified.",
        epilog=examples(""),
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    named = [name for names in PANELS.values() for name in names]
    files = [info.name.replace("_", "-") for info in pkgutil.iter_modules(__path__)]
    for name in [wanted] if wanted in named else dict.fromkeys([*named, *files]):
        module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
        if hasattr(module, "commands"):
            for info in module.commands.registered_commands:
                dress(info, f"{name} {info.name or info.callback.__name__.replace('_', '-')}")
            app.add_typer(module.commands, name=name, cls=Group, epilog=examples(name), rich_help_panel=panel(name))
        elif hasattr(module, "command"):
            app.command(name)(module.command)
            dress(app.registered_commands[-1], name)
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
            code = build("".join(sys.argv[1:2]))(prog_name="edgebed", standalone_mode=False)
        sys.exit(code)
    except EdgebedError as error:
        _fail(error)
    except typer.TyperException as error:
        if refused := refusal(error, " ".join(["edgebed", *sys.argv[1:2]])):
            _fail(refused)
        sys.exit(error.exit_code)
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
