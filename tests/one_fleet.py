"""With several workers one of them runs all test files that start a fleet, while the others run the other tests.

Two fleets at once would share the host's CPUs, and one might remove what a killed one has left.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parents[1]
MARK = re.compile(r"pytest\.mark\.(root|docker|fleet)\b")


@functools.cache
def starts_fleet(file: str) -> bool:
    """Whether a test file, relative to the repository, has tests that start a fleet."""
    return MARK.search((ROOT / file).read_text()) is not None


def scope(nodeid: str) -> str:
    """Tests of one scope are run by one worker: all that start a fleet; every other test for itself."""
    return "fleet" if starts_fleet(nodeid.partition("::")[0]) else nodeid


class OneFleet(LoadScopeScheduling):
    """Hands out scopes, the one with the most tests first."""

    def _split_scope(self, nodeid: str) -> str:
        return scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> OneFleet | None:
    """Called by xdist. Other ways to distribute tests than `loadscope` stay as they are."""
    return OneFleet(config, log) if config.getvalue("dist") == "loadscope" else None  # type: ignore[arg-type]
