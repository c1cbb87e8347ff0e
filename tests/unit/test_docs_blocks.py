"""Every command of the documentation is played by tests/component/test_docs_commands.py, or listed with a reason."""

from __future__ import annotations

import pytest

from tests.docs_blocks import Block, blocks, pages
from tests.docs_commands import NOT_PLAYED, PLAYED, WHOLE_PAGE, why_not

SHELL = [block for page in pages() for block in blocks(page) if block.is_shell]


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_a_command_is_played_or_listed(block: Block) -> None:
    played, why = block.page in PLAYED, why_not(block)
    assert played or why, f"{block} is neither: name the page in PLAYED or NOT_PLAYED (tests/docs_commands.py)"
    assert why is None or len(why) > 10


@pytest.mark.parametrize("page", NOT_PLAYED)
def test_what_is_listed_is_there(page: str) -> None:
    found = [block.script for block in blocks(page) if block.is_shell]
    lost = [begins for begins in NOT_PLAYED[page] if not any(each.startswith(begins) for each in found)]
    assert lost in ([], [WHOLE_PAGE]), "no command begins so any more"


@pytest.mark.parametrize("page", PLAYED)
def test_a_page_that_is_played_has_commands(page: str) -> None:
    assert [block for block in blocks(page) if block.is_shell and why_not(block) is None]
    assert WHOLE_PAGE not in NOT_PLAYED.get(page, {})


def test_how_to_pages_are_played_and_short() -> None:
    found = [page for page in pages() if page.startswith("docs/howto/")]
    assert found
    assert [page for page in found if page not in PLAYED] == []


def test_commands_of_a_transcript_are_those_behind_a_dollar() -> None:
    body = "$ edgebed data a.yaml --set b=1 \\\n    --set c=2\nprinted \\\n$ edgebed runs\nprinted\n"
    block = Block("page", 1, "", "", body)
    assert block.is_shell
    assert block.script == "edgebed data a.yaml --set b=1 \\\n    --set c=2\nedgebed runs\n"
    assert not Block("page", 1, "text", "", "edgebed: what it printed\n").is_shell
    assert not Block("page", 1, "python", "", "$ edgebed runs\n").is_shell
