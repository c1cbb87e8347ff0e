"""Pages of evidence say of every table when it was measured and on which commit, and tell no history."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted((DOCS / "evidence").glob("*.md"))
MEASURED = re.compile(r"20\d\d-\d\d-\d\d,\s[0-9a-f]{8}\b")
HISTORY = re.compile(r"\b(since then|at that time|until now|earlier version)\b|\bbefore:", re.IGNORECASE)
OF_THE_HOST = "The machine"
"""The section that says what the host is: nothing in it was measured."""


def sections(page: Path) -> dict[str, str]:
    parts = re.split(r"^## (.*)$", page.read_text("utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_section_with_a_table_names_a_date_and_a_commit(page: Path) -> None:
    told = {title: text for title, text in sections(page).items() if "|---" in text and title != OF_THE_HOST}
    assert told
    assert [title for title, text in told.items() if not MEASURED.search(text)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_evidence_is_of_today_and_tells_no_history(page: Path) -> None:
    assert HISTORY.findall(page.read_text("utf-8")) == []


def test_every_page_of_evidence_is_linked_from_a_page_of_the_manual() -> None:
    manual = "".join(page.read_text("utf-8") for page in DOCS.glob("*.md"))
    assert PAGES
    assert [page.name for page in PAGES if f"](evidence/{page.name}" not in manual] == []
