"""Docstrings of the product begin with a summary line, so that a Google-style parser finds their sections."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("edgebed", "edge_agent", "orchestrator")
SECTIONS = ("Args:", "Attributes:", "Raises:", "Returns:")


def without_summary(source: str) -> Iterator[str]:
    """Names of what has a docstring that begins with a section."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text is not None and text.startswith(SECTIONS):
                yield getattr(node, "name", "the module")


def test_every_docstring_begins_with_a_summary() -> None:
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    found = {f"{file.relative_to(ROOT)}: {name}" for file in files for name in without_summary(file.read_text("utf-8"))}
    assert len(files) > 300
    assert not found


def test_one_without_a_summary_is_found() -> None:
    """Else the test above could not fail."""
    source = '''
        class A:
            """Args:
            x: a number.
            """

            def f(self):
                """Does it.

                Args:
                    y: another.
                """
    '''
    assert list(without_summary(textwrap.dedent(source))) == ["A"]
