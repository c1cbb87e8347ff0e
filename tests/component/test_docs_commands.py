"""The pages of the documentation, word by word: their files are written, and their commands typed, in their order."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.component._docs_quick import quick
from tests.component._docs_shell import Shell
from tests.docs_blocks import blocks
from tests.docs_commands import PLAYED, steps

MARKS = {"": [], "mosquitto": [pytest.mark.mosquitto]}
WITH_FLEETS = [pytest.param(page, id=page, marks=MARKS[how.needs]) for page, how in PLAYED.items() if how.fleet]
SIMULATED = [page for page, how in PLAYED.items() if not how.fleet]


@pytest.mark.parametrize("page", SIMULATED)
def test_a_page_does_what_it_says(page: str, tmp_path: Path) -> None:
    play(page, tmp_path)


@pytest.mark.fleet
@pytest.mark.parametrize("page", WITH_FLEETS)
def test_a_page_with_devices_does_what_it_says(page: str, tmp_path: Path) -> None:
    play(page, tmp_path)


def play(page: str, folder: Path) -> None:
    """Write its files and type its commands, as far as a test can; then look for the files that it promises."""
    how = PLAYED[page]
    with Shell(folder, how.rounds) as shell:
        for block in [each for other in how.after for each in blocks(other) if each.title] + steps(page):
            if block.title:
                shell.write(block)
                continue
            done = shell.type(block)
            wanted = how.ends.get(block.script.rstrip("\n"), 0)
            assert done.returncode == wanted, f"{block}\n{block.script}\n{done.stdout}\n{done.stderr}"
        assert [pattern for pattern in how.makes if not any(shell.folder.glob(pattern))] == []


def test_the_options_of_a_page_come_after_those_that_make_it_quick() -> None:
    typed = ["run", "a.yaml", "--set", "training.rounds=9"]
    assert quick(typed, 2)[-3:] == typed[1:]
    assert quick(["run", "--resume", "a"], 2) == ["run", "--resume", "a"]
    assert quick(["runs"], 2) == ["runs"]
