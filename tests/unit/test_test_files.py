"""What the files of the tests keep to."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(path for folder in ("tests", "benchmarks") for path in (ROOT / folder).rglob("*.py"))


def module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


TEST_FILES = {module(path) for path in FILES if path.name.startswith("test_")}


def imported(code: str, package: str) -> set[str]:
    """Full names of what code of this package imports: with `from a import b`, both `a` and `a.b`."""
    found = set[str]()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize(
    "code",
    [
        "import tests.unit.test_test_files",
        "from tests.unit.test_test_files import module",
        "from tests.unit import test_test_files as other",
        "def late():\n    from . import test_test_files",
    ],
)
def test_an_import_of_a_test_file_is_seen(code: str) -> None:
    assert imported(code, "tests.unit") & TEST_FILES == {"tests.unit.test_test_files"}


def test_tests_of_logic_are_not_alone() -> None:
    """`make test` looks for tests that run alone among the others only."""
    quick = [path for path in FILES if path.relative_to(ROOT).parts[1] in ("unit", "contract")]
    assert [path.name for path in quick if "mark." + "alone" in path.read_text("utf-8")] == []


def test_no_file_imports_a_test_file() -> None:
    """A test file is read by pytest alone: what several files need stands in a module of helpers."""
    found = {module(path): imported(path.read_text("utf-8"), module(path.parent)) & TEST_FILES for path in FILES}
    assert {name: sorted(files) for name, files in found.items() if files} == {}
