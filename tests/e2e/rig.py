"""A real fleet with a real run on it, and the means to wait for what its records say."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from orchestrator.broker.open_broker import KINDS, open_broker
from orchestrator.broker.own import OwnBroker
from orchestrator.calibration.calibrate import Calibration
from orchestrator.experiment import Environment, Experiment, Training
from orchestrator.fleet.control.controller import FleetController
from orchestrator.fleet.spec.profile import load_fleet
from orchestrator.records.reader import read
from orchestrator.records.types import Record, RunFinished
from orchestrator.runs import opened_fleet, session
from orchestrator.runs.data import Prepared, prepare_data
from orchestrator.training.process import TrainerProcess
from tests.component._faults import pid_of

R = TypeVar("R")

FLEET = """
name: rig
backend: {backend}
devices:
  - {{profile: {folder}/small.yaml, count: 3, name: dev}}
"""

SMALL = "name: small\ncpus: 0.3\nuplink_mbit_s: 20\ndownlink_mbit_s: 20\nmemory_mib: 1024\n"


WIDER = "cpus: 0.4\nuplink_mbit_s: 30\ndownlink_mbit_s: 25\nmemory_mib: 1024\n"


def experiment(environment: Environment | None = None, **training: Any) -> Experiment:
    """Three devices, digits, a few rounds; faults are noticed within seconds."""
    defaults: dict[str, Any] = {"rounds": 4, "batch_size": 16, "liveness_s": 4.0, "heartbeat_s": 0.5, "seed": 3}
    return Experiment(
        name="rig",
        fleet="fleet.yaml",
        model={"name": "resnet-tiny"},
        methods=[{"name": "dtfl", "tier": 3}],
        training=msgspec.convert({**defaults, **training}, Training),
        environment=environment,
    )


class Rig:
    """A run in the background. `records` and `expect` look at what it has recorded so far."""

    def __init__(self, controller: FleetController, request: session.Request, work: asyncio.Task[list[Path]]) -> None:
        self.controller, self.request, self.work = controller, request, work

    def records(self) -> list[Record]:
        files = sorted(self.request.runs.glob("*/records.jsonl"))
        return read(files[-1]) if files else []

    def of(self, kind: type[R]) -> list[R]:
        return [record for record in self.records() if isinstance(record, kind)]

    async def expect(self, kind: type[R], true: Callable[[R], bool], timeout_s: float = 60.0) -> R:
        """The first record of `kind` for which `true` holds; fails when the run ends or time is up before."""
        async with asyncio.timeout(timeout_s):
            while True:
                for record in self.of(kind):
                    if true(record):
                        return record
                assert not self.work.done(), f"the run ended without it: {self.of(RunFinished)}"
                await asyncio.sleep(0.05)

    async def finish(self, timeout_s: float = 120.0) -> Path:
        async with asyncio.timeout(timeout_s):
            (folder,) = await self.work
        return folder

    def pid(self, device: str) -> int:
        """Process id of a local agent."""
        return pid_of(self.controller, device)


@contextlib.asynccontextmanager
async def rig(folder: Path, wanted: Experiment, backend: str = "local", broker: str = "") -> AsyncIterator[Rig]:
    """Start fleet and run. The calibration is left out: it has tests of its own."""
    async with fleet_up(folder, wanted, backend, broker) as fleet, fleet.run(wanted, folder) as run:
        yield run


class FleetUp:
    """A standing fleet on which one run after the other can be started, with one trainer, as those of an experiment;
    without one each run has its own."""

    def __init__(
        self, controller: FleetController, prepared: Prepared, backend: str, trainer: TrainerProcess | None = None
    ) -> None:
        self.controller, self._prepared, self._backend, self._trainer = controller, prepared, backend, trainer

    @contextlib.asynccontextmanager
    async def run(self, wanted: Experiment, folder: Path) -> AsyncIterator[Rig]:
        """A run in the background, with its records below `folder`."""
        request = session.Request(wanted, folder / "experiment.yaml", folder / "runs", backend=self._backend)
        watch = session.Watch(session.quiet)
        passed = Calibration((), True)
        run = session.run_methods(request, self.controller, self._prepared, passed, watch, self._trainer)
        work = asyncio.create_task(run)
        try:
            yield Rig(self.controller, request, work)
        finally:
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await work


@contextlib.asynccontextmanager
async def fleet_up(
    folder: Path, wanted: Experiment, backend: str = "local", broker: str = "", own: OwnBroker | None = None
) -> AsyncIterator[FleetUp]:
    """Three devices with their limits on, for the data of `wanted`, over a broker of the given kind, or any, or over
    `own`."""
    (folder / "small.yaml").write_text(SMALL)
    (folder / "wider.yaml").write_text(WIDER)
    path = folder / "fleet.yaml"
    path.write_text(FLEET.format(backend=backend, folder=folder))
    (folder / "shards").mkdir()
    spec = load_fleet(path)
    prepared = prepare_data(wanted, [device.name for device in spec.devices], folder / "shards")
    heartbeat_s = wanted.training.heartbeat_s
    only = functools.partial(open_broker, kinds=(broker,) if broker else KINDS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opened_fleet, "open_broker", only)
        opening = session.standing_fleet(
            spec, backend=backend, own_broker=own, shards=prepared.shards, heartbeat_s=heartbeat_s
        )
        async with TrainerProcess.started() as trainer, opening as controller:
            yield FleetUp(controller, prepared, backend, trainer)
