"""How the help of every command looks: groups, examples, and parameters in the reader's words instead of Python's."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, get_args

import typer
from rich.markup import escape
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.models import CommandInfo

from edgebed.errors import UsageError
from edgebed.typed import nearest

PANELS = {
    "Start here": ("init", "run", "compare", "report"),
    "Before a run": ("doctor", "check", "calibrate", "data", "models", "schema", "check-method"),
    "Simulate, watch, look back": ("simulate", "runs", "dashboard", "export", "serve"),
    "Devices": ("fleet", "boards", "broker", "reference"),
    "Tables of papers": ("reproduce", "tiers"),
}
"""The commands in the order of the help; each is in one group."""

EXAMPLES = {
    "": ("edgebed init demo", "edgebed run demo/experiment.yaml", "edgebed compare 'sample*'"),
    "init": ("edgebed init demo",),
    "run": (
        "edgebed run demo/experiment.yaml",
        "edgebed run demo/experiment.yaml --seeds 1,2,3 --dashboard",
        "edgebed run demo/experiment.yaml --method fedavg --set training.rounds=5",
        "edgebed run demo/experiment.yaml --estimate",
        "edgebed run --resume sample-dtfl-20261123-120000-ab12",
    ),
    "compare": (
        "edgebed compare 'sample*' --baseline fedavg",
        "edgebed compare 'sample*' --pdf figures.pdf --latex table.tex",
    ),
    "report": ("edgebed report sample-dtfl-20261123-120000-ab12", "edgebed report 'sample*'"),
    "doctor": ("edgebed doctor", "edgebed doctor --fleet demo/fleet.yaml"),
    "check": ("edgebed check demo/experiment.yaml", "edgebed check demo/fleet.yaml"),
    "calibrate": ("edgebed calibrate demo/fleet.yaml", "edgebed calibrate demo/fleet.yaml --short --json"),
    "data": ("edgebed data", "edgebed data demo/experiment.yaml --set partition.kind=dirichlet"),
    "models": ("edgebed models resnet56", "edgebed models net.py:Net --stages 6 --shape 1x28x28"),
    "schema": ("edgebed schema experiment > experiment.schema.json",),
    "check-method": ("edgebed check-method mine.py",),
    "simulate": ("edgebed simulate demo/experiment.yaml", "edgebed simulate demo/experiment.yaml --devices 100"),
    "runs": ("edgebed runs", "edgebed runs 'sample*' --method fedavg --sort accuracy"),
    "dashboard": ("edgebed dashboard", "edgebed dashboard 'sample*' --port 8080"),
    "export": ("edgebed export sample-dtfl-20261123-120000-ab12 --csv tables",),
    "serve": ("edgebed serve exits-early-exit-20261123-120000-ab12 --requests 1000",),
    "fleet": ("edgebed fleet up demo/fleet.yaml", "edgebed fleet down demo/fleet.yaml"),
    "fleet up": ("edgebed fleet up demo/fleet.yaml",),
    "fleet ps": ("edgebed fleet ps demo/fleet.yaml",),
    "fleet down": ("edgebed fleet down demo/fleet.yaml",),
    "fleet ls": ("edgebed fleet ls",),
    "fleet push-image": ("edgebed fleet push-image swarm.yaml --to ssh://user@node2",),
    "boards": ("edgebed boards serve", "edgebed boards invite pi4", "edgebed boards ls"),
    "boards serve": ("edgebed boards serve --host 192.168.1.10", "edgebed boards serve --service"),
    "boards invite": ("edgebed boards invite pi4 --profile cpu1 --expires 30m",),
    "boards ls": ("edgebed boards ls",),
    "boards show": ("edgebed boards show pi4",),
    "boards rename": ("edgebed boards rename pi4 kitchen",),
    "boards revoke": ("edgebed boards revoke pi4",),
    "boards measure": ("edgebed boards measure pi4 --output pi4.yaml",),
    "boards selftest": ("edgebed boards selftest pi4",),
    "broker": ("edgebed broker users demo/fleet.yaml users", "edgebed broker acl"),
    "broker users": ("edgebed broker users demo/fleet.yaml users",),
    "broker acl": ("edgebed broker acl > edgebed.acl",),
    "reference": ("edgebed reference record mine", "edgebed reference show mine.json"),
    "reference record": ("edgebed reference record mine", "edgebed reference record mine demo/experiment.yaml"),
    "reference show": ("edgebed reference show", "edgebed reference show mine.json"),
    "reference compare": ("edgebed reference compare mine.json theirs.json",),
    "reproduce": ("edgebed reproduce", "edgebed reproduce dtfl-table3 --scale digits --jobs 2"),
    "tiers": ("edgebed tiers --model resnet-tiny --shape 1x8x8 --tiers 4",),
}
"""By command. A test parses each line."""

WORDS: dict[Any, str] = {bool: "", str: "<text>", int: "<number>", float: "<number>", Path: "<path>"}
"""What the help shows in place of a type: nothing for a flag."""


class Argument(TyperArgument):
    """Named in capitals and without its type, but with its choices."""

    def get_usage_pieces(self, ctx: Any) -> list[str]:
        return [self.display_name_raw if self.required else f"[{self.display_name_raw}]"]

    def display_type_rich(self, ctx: Any) -> str:
        return self.display_type(ctx) if self.type_descriptor.is_choice else ""


def _in_words(param: Any) -> Any:
    """The same parameter with the name and type that the help shows."""
    kind = param.type_descriptor.annotation
    if isinstance(param, TyperArgument):
        param.__class__ = Argument
        param.metavar = param.metavar or param.name.upper() + ("..." if param.nargs != 1 else "")
    elif isinstance(param, TyperOption) and param.metavar is None and not param.type_descriptor.is_choice:
        param.metavar = WORDS.get(next(iter(get_args(kind)), kind))
    return param


class Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return [_in_words(param) for param in super().get_params(ctx)]


class Group(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return [_in_words(param) for param in super().get_params(ctx)]

    def list_commands(self, ctx: Any) -> list[str]:
        """In the order of PANELS; the subcommands of a group as they are written."""
        ordered = [name for names in PANELS.values() for name in names if name in self.commands]
        return list(dict.fromkeys([*ordered, *self.commands])) if self.rich_help_panel is None else list(self.commands)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Raises UsageError with the nearest command."""
        word = args[0]
        if word not in self.commands and not word.startswith("-") and not ctx.resilient_parsing:
            raise UsageError(
                f"there is no command {word!r}{nearest(word, list(self.commands))}",
                hint=f"`{ctx.command_path} --help` lists the commands",
            )
        return super().resolve_command(ctx, args)


def panel(name: str) -> str | None:
    """The group of a command."""
    return next((title for title, names in PANELS.items() if name in names), None)


def examples(path: str) -> str:
    """The examples of a command, as its help ends with them."""
    lines = EXAMPLES.get(path, ())
    return escape("\n".join(["Examples:" if len(lines) > 1 else "Example:", *(f"$ {line}" for line in lines)]))


def dress(info: CommandInfo, path: str) -> None:
    """Give a command its group, its examples, and the first sentence of its docstring for the list of commands."""
    paragraphs = [" ".join(each.split()) for each in (inspect.getdoc(info.callback) or "").split("\n\n")]
    info.cls, info.epilog, info.rich_help_panel = Command, examples(path), panel(path)
    info.help, info.short_help = "\n\n".join(paragraphs), paragraphs[0].partition(". ")[0].rstrip(".") + "."


def refusal(error: typer.TyperException, typed: str) -> UsageError | None:
    """What is wrong with the options and arguments of a command, in the form of every other error. None: the command
    was given none and has printed its help. `typed`: the command, where the error does not name it."""
    text = " ".join(error.format_message().split()).replace("Value error, ", "").rstrip(".")
    if not text:
        return None
    option = getattr(error, "option_name", None)
    if option is not None and hasattr(error, "possibilities"):
        text = f"there is no option {option!r}{nearest(option, error.possibilities or ())}"
    ctx = getattr(error, "ctx", None)
    return UsageError(text[:1].lower() + text[1:], hint=f"see `{ctx.command_path if ctx else typed} --help`")
