"""Files that the documentation names exist, and so do the pages that it links to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs_blocks import blocks, pages

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *(ROOT / f"{name}.md" for name in ("AGENTS", "CHANGELOG", "CONTRIBUTING", "SECURITY")),
    ROOT / "benchmarks" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
FOLDERS = "edgebed|orchestrator|edge_agent|profiles|tests|benchmarks|docker|examples"
WRITTEN_BY_THE_READER = {
    *(block.title for page in pages() for block in blocks(page) if block.title.endswith(".py")),
    *("my_method.py", "random.py", "sensors.py"),
}

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@every_page
def test_files_that_a_page_names_exist(page: Path) -> None:
    named = set(re.findall(rf"`((?:{FOLDERS})/[\w./*-]+)`", page.read_text(encoding="utf-8")))
    missing = {name for name in named if not any(ROOT.glob(name.rstrip("/")))}
    assert missing <= WRITTEN_BY_THE_READER


@every_page
def test_modules_that_a_page_names_without_their_package_exist(page: Path) -> None:
    """`machine.py`, or `runs/daemon.py`; also in a tree of folders, where no quotes stand around it."""
    named = set(re.findall(r"(?<![\w/.*-])[\w/]+\.py\b(?!\w)", page.read_text(encoding="utf-8")))
    there = {f"/{path.relative_to(ROOT)}" for folder in FOLDERS.split("|") for path in (ROOT / folder).rglob("*.py")}
    missing = {name for name in named if not any(path.endswith(f"/{name}") for path in there)}
    assert missing <= WRITTEN_BY_THE_READER


@every_page
def test_pages_that_a_page_links_to_exist(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert not [link for link in links if not (page.parent / link).exists()]


def test_the_pages_name_files() -> None:
    """Else the tests above could not fail."""
    assert (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").count(".py`") > 20
