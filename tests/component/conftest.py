"""Fixtures of several files."""

from __future__ import annotations

import io
import os
import re
import shutil
import tarfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import docker
import pytest

from orchestrator.papers import workers
from tests import warm
from tests.component._boards import Lab, running
from tests.hangs import run


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    """A boards service on loopback."""
    async with running(tmp_path) as lab:
        yield lab


@pytest.fixture
def warm_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes that compute cells find torch loaded. For tests that neither stop nor kill one."""
    monkeypatch.setattr(workers, "module_command", lambda *command: [*warm.python(), "-m", *command])


@pytest.fixture
def mosquitto_image() -> Iterator[str]:
    """An image with this machine's Mosquitto: the real one would have to be downloaded."""
    tag, binary = f"edgebed-test-mosquitto:{os.getpid()}", shutil.which("mosquitto", path="/usr/sbin:/usr/bin")
    assert binary is not None
    libraries = re.findall(r"/\S+", run(["ldd", binary]).stdout)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", dereference=True) as tar:
        for path in (binary, "/etc/passwd", *libraries):
            tar.add(path)
    client = docker.from_env()
    client.api.import_image_from_data(archive.getvalue(), *tag.split(":"))
    yield tag
    client.images.remove(tag, force=True)
