"""The programs that measure: each can be started, and benchmarks/README.md says what it prints and needs."""

from __future__ import annotations

import importlib
import re

import pytest

from benchmarks.__main__ import names
from benchmarks._paths import EXPERIMENTS, ROOT

COLUMNS = 5
"""Name, what it prints, limit or peer, time, needs."""


def rows() -> list[list[str]]:
    lines = re.findall(r"^\| `\w+` \|.*\|$", (ROOT / "benchmarks" / "README.md").read_text("utf-8"), re.MULTILINE)
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def test_every_program_is_in_the_table_once() -> None:
    assert sorted(row[0].strip("`") for row in rows()) == names()


def test_the_table_says_of_each_what_it_prints_and_how_long_it_takes() -> None:
    assert [row[0] for row in rows() if len(row) != COLUMNS or not row[1]] == []
    assert [row[0] for row in rows() if not re.search(r"\d+ (s|min)\b", row[3])] == []


@pytest.mark.parametrize("name", names())
def test_a_program_says_what_it_measures_and_can_be_started(name: str) -> None:
    module = importlib.import_module(f"benchmarks.{name}")
    assert module.__doc__
    assert callable(module.main)


def test_they_find_the_source_tree() -> None:
    assert (ROOT / "pyproject.toml").is_file()
    assert (EXPERIMENTS / "demo.yaml").is_file()
