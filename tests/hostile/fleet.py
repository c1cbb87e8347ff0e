"""A run with a hostile device in it: real broker, real session, agents in processes of their own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import ClassVar
from unittest import mock

import msgspec

from edgebed.link.connection import Address
from orchestrator.calibration.calibrate import Calibration
from orchestrator.experiment import Experiment, Training
from orchestrator.fleet.base import Enforcement
from orchestrator.fleet.named import NamedBackend, Opening
from orchestrator.fleet.spec.profile import load_fleet
from orchestrator.runs import session
from orchestrator.runs.data import prepare_data
from tests.component._fleet import NoBackend
from tests.hostile.agent import ATTACKS

HOSTILE = "dev-2"
CEILING_S = 20.0

FLEET = "name: hostile\nbackend: local\ndevices:\n  - {profile: wide.yaml, count: 3, name: dev}\n"
WIDE = "name: wide\ncpus: 0.3\nuplink_mbit_s: 100\ndownlink_mbit_s: 100\nmemory_mib: 512\n"


class Processes(NoBackend, NamedBackend):
    """Starts agents, one of them hostile, and limits nobody."""

    name = "processes"

    environment: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def open(cls, opening: Opening) -> Processes:
        return cls(opening.fleet_id)

    def __init__(self, fleet_id: str) -> None:
        super().__init__(Enforcement.KERNEL)
        self._fleet_id = fleet_id
        self._processes: list[asyncio.subprocess.Process] = []

    async def start(self, access: Mapping[str, Address], shards: Mapping[str, Path]) -> None:
        for device, where in access.items():
            broker = f"mqtt://{where.username}:{where.password}@{where.host}:{where.port}"
            module = "tests.hostile.agent" if device == HOSTILE else "edge_agent"
            command = [sys.executable, "-m", module, "--fleet", self._fleet_id, "--device", device]
            self._processes.append(
                await asyncio.create_subprocess_exec(
                    *command,
                    "--shard",
                    str(shards[device]),
                    env={**os.environ, **self.environment, "EDGEBED_BROKER": broker, "OMP_NUM_THREADS": "1"},
                    cwd=Path(__file__).parents[2],
                )
            )

    async def close(self) -> None:
        await self._close()

    async def _close(self) -> None:
        for process in self._processes:
            if process.returncode is None:
                process.terminate()
            await process.wait()


def experiment() -> Experiment:
    """FedGKT, whose server half is one for all; a round per attack."""
    training = {
        "rounds": len(ATTACKS),
        "batch_size": 50,
        "liveness_s": 30.0,
        "heartbeat_s": 0.5,
        "round_ceiling_s": CEILING_S,
        "max_update_norm": 1000.0,
        "seed": 3,
        "optimizer": {"name": "sgd", "lr": 0.01},
    }
    return Experiment(
        name="hostile",
        fleet="fleet.yaml",
        model={"name": "resnet-tiny"},
        methods=[{"name": "fedgkt", "cut": 1}],
        training=msgspec.convert(training, Training),
        dilation="off",
    )


@contextlib.asynccontextmanager
async def attacked(
    folder: Path, names: int, watch: session.Watch | None = None
) -> AsyncIterator[asyncio.Task[list[Path]]]:
    """A run that has begun on a fleet with a hostile device, which invents so many names; its run folders."""
    (folder / "wide.yaml").write_text(WIDE)
    path = folder / "fleet.yaml"
    path.write_text(FLEET)
    (folder / "shards").mkdir()
    spec, wanted = load_fleet(path), experiment()
    prepared = prepare_data(wanted, [device.name for device in spec.devices], folder / "shards")
    request = session.Request(wanted, folder / "experiment.yaml", folder / "runs")

    kind = type("Attacked", (Processes,), {"environment": {"HOSTILE_NAMES": str(names)}})
    with mock.patch.object(session, "backend_class", return_value=kind):
        opening = session.standing_fleet(spec, dilation="off", shards=prepared.shards, heartbeat_s=0.5)
        async with opening as controller:
            told = watch or session.Watch(session.quiet)
            work = asyncio.create_task(session.run_methods(request, controller, prepared, Calibration((), True), told))
            try:
                yield work
            finally:
                work.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await work
