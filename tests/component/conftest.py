"""Fixtures of several files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from orchestrator.runs import session
from tests.component._boards import Lab, running


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    """A boards service on loopback."""
    async with running(tmp_path) as lab:
        yield lab


@pytest.fixture
def uncalibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs leave out their calibration, which has tests of its own. It takes 7 s, beside other tests a minute."""

    async def left_out(*_: object) -> session.Calibration:
        return session.Calibration((), False)

    monkeypatch.setattr(session, "calibrate_fleet", left_out)
