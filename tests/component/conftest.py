"""Fixtures of several files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.component._boards import Lab, running


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    """A boards service on loopback."""
    async with running(tmp_path) as lab:
        yield lab
