"""With several workers one of them runs all tests that start a fleet, while the others run the other tests.

Two fleets at once would share the host's CPUs, and one might remove what a killed one has left.
"""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parents[1]
MARK = re.compile(r"pytest\.mark\.(root|docker|fleet)\b")
WHOLE_FILE = ""


@functools.cache
def starting_fleets(file: str) -> frozenset[str]:
    """Functions of a test file, relative to the repository, that start a fleet; WHOLE_FILE among them if all do."""
    found = set[str]()
    for node in ast.parse((ROOT / file).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if any(MARK.search(ast.unparse(each)) for each in node.decorator_list):
                found.add(node.name)
        elif MARK.search(ast.unparse(node)):  # pytestmark, or a parameter with a mark
            found.add(WHOLE_FILE)
    return frozenset(found)


def scope(nodeid: str) -> str:
    """Tests of one scope are run by one worker: all that start a fleet; those of a file whose first parameter is the
    same, which may share what they make of it; every other test for itself."""
    file, _, test = nodeid.partition("::")
    name, _, parameters = test.partition("[")
    known = starting_fleets(file)
    if WHOLE_FILE in known or name in known:
        return "fleet"
    return f"{file}[{parameters.removesuffix(']').partition('-')[0]}" if parameters else nodeid


class OneFleet(LoadScopeScheduling):
    """Hands out scopes, the one with the most tests first."""

    def _split_scope(self, nodeid: str) -> str:
        return scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> OneFleet | None:
    """Called by xdist. Other ways to distribute tests than `loadscope` stay as they are."""
    return OneFleet(config, log) if config.getvalue("dist") == "loadscope" else None  # type: ignore[arg-type]
