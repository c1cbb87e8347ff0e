"""Runs on the boards of a service that stands in the user's own folder, and what they have recorded so far."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from edge_agent.board.standby import Standby
from orchestrator.experiment import load
from orchestrator.records.reader import read
from orchestrator.records.types import Record
from orchestrator.runs.request import Request
from tests.component._boards import Lab, running
from tests.waiting import until

R = TypeVar("R")

EXPERIMENT = """
name: boards
fleet: fleet.yaml
model: {{name: resnet-tiny}}
methods: [{methods}]
training: {{rounds: {rounds}, batch_size: 64, heartbeat_s: 0.5, liveness_s: 20, seed: 2}}
"""
HERE = "{cpus: 0.3, uplink_mbit_s: 20, downlink_mbit_s: 20, memory_mib: 1024}"


@pytest.fixture
async def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lab]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    place = tmp_path / "edgebed" / "boards"
    async with running(tmp_path, place) as lab:
        yield lab


@contextlib.asynccontextmanager
async def boards(lab: Lab, **allow_code: bool) -> AsyncIterator[None]:
    """Boards that have joined and stand by: by name, whether they take code."""
    keys = [await lab.board(name, allow_code=each) for name, each in allow_code.items()]
    standing = [asyncio.create_task(Standby(each, lab.said.append, guard_s=0.5).run()) for each in keys]
    try:
        await until(lambda: len(lab.live.sessions) == len(keys))
        yield
    finally:
        for task in standing:
            task.cancel()
        await asyncio.gather(*standing, return_exceptions=True)


def request(
    folder: Path,
    devices: str,
    methods: str = "{name: fedavg}",
    rounds: int = 2,
    scenario: str = "",
    backend: str = "software",
) -> Request:
    (folder / "here.yaml").write_text(HERE)
    (folder / "fleet.yaml").write_text(f"name: lab\nbackend: {backend}\nreserve_cpus: 0\ndevices:\n{devices}")
    path = folder / "experiment.yaml"
    path.write_text(EXPERIMENT.format(methods=methods, rounds=rounds) + scenario)
    return Request(load(path), path, folder / "runs", allow_uncalibrated=True)


class Recorded:
    """What a run that goes on has recorded."""

    def __init__(self, runs: Path, work: asyncio.Task[list[Path]]) -> None:
        self._runs, self._work = runs, work

    def records(self) -> list[Record]:
        return [record for path in self._runs.glob("*/records.jsonl") for record in read(path)]

    def of(self, kind: type[R]) -> list[R]:
        return [record for record in self.records() if isinstance(record, kind)]

    async def expect(self, kind: type[R], true: Callable[[R], bool]) -> R:
        """The first record for which `true` holds, when it comes."""
        found: list[R] = []

        def there() -> bool:
            found[:] = [record for record in self.of(kind) if true(record)]
            return bool(found) or self._work.done()

        await until(there, 90)
        if not found:
            self._work.result()
        return found[0]
