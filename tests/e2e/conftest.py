"""Fixtures of several files."""

from __future__ import annotations

import pytest

from tests.e2e.wheel import Installed, build_wheel


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("wheel")
    return Installed(folder, build_wheel(folder))
