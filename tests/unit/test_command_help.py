"""The help of all commands: groups, examples that parse, words instead of types; and what a wrong command is told."""

from __future__ import annotations

import inspect
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.main import get_command
from typer.testing import CliRunner

from edge_agent.board.command import parser
from edgebed.errors import UsageError
from orchestrator.cli import build, main
from orchestrator.cli.arguments import RUN
from orchestrator.cli.command_help import EXAMPLES, PANELS

APP = build()
WHOLE: Any = get_command(APP)
ALIKE = {
    "--backend": {"tiers", "boards measure"},  # start one device, and take no fleet file
    "--seeds": {"reproduce"},  # has a default of its own
    "--set": {"models"},  # of a model, not of a file
    **dict.fromkeys(("--broker", "--classes", "--dilation", "--grain", "--plugin", "--quiet", "--shape"), ()),
}
"""Options that all commands describe in the same words, and the commands where they mean something else."""


def walked(command: Any = WHOLE, path: str = "") -> Iterator[tuple[str, Any]]:
    """All commands and groups, by what is typed behind `edgebed`."""
    yield path, command
    if isinstance(command, TyperGroup):
        for name, each in command.commands.items():
            yield from walked(each, f"{path} {name}".strip())


COMMANDS = dict(walked())


def parameters(command: Any) -> list[Any]:
    shown: list[Any] = command.get_params(typer.Context(command))
    return [each for each in shown if not getattr(each, "hidden", False)]


def test_every_command_is_in_one_group_and_has_examples() -> None:
    grouped = [name for names in PANELS.values() for name in names]
    assert sorted(grouped) == sorted(WHOLE.commands)
    assert set(COMMANDS) == set(EXAMPLES)
    assert all(each and all(line.startswith("edgebed ") for line in each) for each in EXAMPLES.values())


@pytest.mark.parametrize("path", COMMANDS)
def test_the_help_has_no_types_and_ends_with_the_examples(path: str) -> None:
    done = CliRunner().invoke(APP, [*path.split(), "--help"], env={"COLUMNS": "250"})
    assert done.exit_code == 0, done.output
    assert [word for word in ("<bool>", "<str>", "<list[", "<int", "{") if word in done.stdout] == []
    assert done.stdout.rstrip().splitlines()[-1].strip() == f"$ {EXAMPLES[path][-1]}"


@pytest.mark.parametrize("line", [line for lines in EXAMPLES.values() for line in lines])
def test_every_example_parses(line: str) -> None:
    _, *words = shlex.split(line.partition(" > ")[0])
    command = WHOLE
    while isinstance(command, TyperGroup):
        command = command.commands[words.pop(0)]
    given = command.make_context(line, words).params
    assert set(given) == {each.name for each in command.params}


@pytest.mark.parametrize("path", [path for path, each in COMMANDS.items() if isinstance(each, TyperCommand)])
def test_parameters_are_in_words(path: str) -> None:
    command = COMMANDS[path]
    context = typer.Context(command)
    for each in parameters(command):
        assert each.help, f"{path}: {each.name} has no help"
        if isinstance(each, TyperOption) and each.is_flag:
            assert each.display_type_rich(context) == "", each.opts
            assert not (each.secondary_opts and each.default is False), f"{each.opts} has a --no- that does nothing"
        if isinstance(each, TyperArgument):
            assert each.display_name_raw == each.display_name_raw.upper()
            is_run = each.name in ("run", "runs")
            assert is_run == (each.help == RUN), f"{path}: {each.help}"
            assert is_run == each.display_name_raw.startswith("RUN")


def test_an_option_is_described_alike_by_all_commands() -> None:
    for option, others in ALIKE.items():
        texts = {
            path: f"{each.metavar} {each.help}"
            for path, command in COMMANDS.items()
            for each in parameters(command)
            if option in each.opts and path not in others
        }
        assert len(texts) > 1
        assert len(set(texts.values())) == 1, texts


def test_the_first_group_comes_first_and_a_list_shows_one_sentence_per_command() -> None:
    shown = CliRunner().invoke(APP, ["--help"], env={"COLUMNS": "160"}).stdout
    places = [shown.index(f" {title} ") for title in PANELS]
    assert places == sorted(places)
    for name, command in WHOLE.commands.items():
        if isinstance(command, TyperCommand):
            first = " ".join((inspect.getdoc(command.callback) or "").split()).partition(". ")[0]
            assert first.rstrip(".") + "." == command.short_help, name


def test_the_commands_of_a_group_stand_as_they_are_written() -> None:
    """`compare` is a command of its own, too, and comes early there."""
    shown = CliRunner().invoke(APP, ["reference", "--help"], env={"COLUMNS": "160"}).stdout
    assert re.findall(r"^│ (\w+) ", shown, re.MULTILINE) == ["record", "show", "compare"]


@pytest.mark.parametrize("typed", ["", "fleet"])
def test_who_types_no_command_sees_the_help_and_no_error(
    typed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["edgebed", *typed.split()])
    with pytest.raises(SystemExit):
        main()
    told = capsys.readouterr()
    assert "Usage:" in told.out
    assert told.err == ""


@pytest.mark.parametrize(("words", "shown"), [("edgebed fleet do", ["down"]), ("edgebed fleet dwn x", [])])
def test_completion_knows_the_commands_and_is_silent_behind_a_wrong_one(
    words: str, shown: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it said would stand in the line that is being typed."""
    asked = {"_EDGEBED_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["edgebed"])
    with pytest.raises(SystemExit):
        main()
    told = capsys.readouterr()
    assert (told.out.split(), told.err) == (shown, "")


def test_the_page_has_the_groups_of_the_help_with_all_their_commands() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text("utf-8")
    for title, names in PANELS.items():
        _, _, rest = page.partition(f"\n**{title}**\n")
        rows = [line for line in rest.partition("\n**")[0].splitlines() if line.startswith("| `edgebed")]
        shown = [re.findall(r"edgebed ([a-z-]+)", row)[:1] for row in rows]
        assert list(dict.fromkeys(name for each in shown for name in each)) == list(names)
    for path in COMMANDS:
        group, _, name = path.partition(" ")
        assert not name or re.search(rf"`edgebed {group} [a-z|\\-]*\b{name}\b", page), path


@pytest.mark.parametrize(
    ("typed", "said", "hint"),
    [
        ("rnu x.yaml", "there is no command 'rnu'; did you mean 'run'?", "`edgebed --help` lists the commands"),
        ("fleet dwn x", "there is no command 'dwn'; did you mean 'down'?", "`edgebed fleet --help` lists the commands"),
        ("compare", "missing argument 'RUN...'", "see `edgebed compare --help`"),
        ("runs --methd x", "there is no option '--methd'; did you mean '--method'?", "see `edgebed runs --help`"),
        ("runs --sort x", "invalid value for '--sort': 'x' is not one of 'id', ", "see `edgebed runs --help`"),
        ("run x.yaml --seeds", "option '--seeds' requires an argument", "see `edgebed run --help`"),
    ],
)
def test_what_cannot_be_read_is_told_as_every_error_is(
    typed: str, said: str, hint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["edgebed", *typed.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == UsageError.exit_code
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"edgebed: {said}")
    assert second == f"Hint: {hint}"


def test_the_agent_s_help_begins_with_what_a_board_does() -> None:
    text = parser().format_help()
    places = [text.index(f"\n    {name} ") for name in ("join", "run", "leave", "device")]
    assert places == sorted(places)
    assert "--broker" not in text
    assert "examples:\n  edgebed-agent join" in text
