"""Memory over 1,000 short rounds on three devices, two of which die in turn every few rounds and come back.

`SOAK_ROUNDS=200` makes it shorter. Memory is looked at after a tenth, a half and all of the rounds. The agent of
d1 lives through all of them; the others die by SIGKILL and are started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import tempfile
from pathlib import Path

import psutil

from benchmarks._figures import figure, no_fleets
from benchmarks._runs import small_request, small_run, write_fleet
from orchestrator.calibration.calibrate import Calibration
from orchestrator.fleet.control.controller import FleetController
from orchestrator.records.reader import read
from orchestrator.records.types import DeviceJoined, DeviceOut, RoundFinished
from orchestrator.rounds.job import RoundResult
from orchestrator.rounds.progress import Progress
from orchestrator.runs import session

ROUNDS = int(os.environ.get("SOAK_ROUNDS", "1000"))
LOOKS = (ROUNDS // 10, ROUNDS // 2, ROUNDS)
EVERY = 4
"""A device dies after every fourth round."""

GROWTH_MB = 40.0
"""Most that a process may grow between the first look and the last."""


class Soak(session.Watch):
    """Kills a device every few rounds, and looks at the memory of the orchestrator and of the agent that stays."""

    def __init__(self, controller: FleetController) -> None:
        super().__init__()
        self._controller, self._victims = controller, itertools.cycle(["d2", "d3"])
        self.kills = 0
        self.memory: dict[int, tuple[float, float]] = {}  # round -> MB of orchestrator and agent

    def round(self, method: str, progress: Progress, result: RoundResult, seconds: float, dilation: float) -> None:
        number = result.round + 1
        if number in LOOKS:
            self.memory[number] = (rss_mb(os.getpid()), rss_mb(self._pid("d1")))
        if number % EVERY == 0 and (pid := self._pid(next(self._victims))):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.kills += 1

    def _pid(self, device: str) -> int:
        """0 while the device is away."""
        known = self._controller.membership.devices[device]
        return int(known.presence.host["pid"]) if known.online and known.presence is not None else 0


def rss_mb(pid: int) -> float:
    return psutil.Process(pid).memory_info().rss / 1e6


async def soak(folder: Path) -> tuple[Soak, Path]:
    write_fleet(folder, [(0.5, 100)] * 3)
    training = {"rounds": ROUNDS, "batch_size": 16, "max_batches": 2, "heartbeat_s": 0.5, "liveness_s": 10.0}
    spec, prepared, request = small_run(small_request(folder, training, {"name": "dtfl", "tier": 3}))
    async with session.standing_fleet(spec, shards=prepared.shards, heartbeat_s=0.5) as controller:
        watch = Soak(controller)
        (run,) = await session.run_methods(request, controller, prepared, Calibration((), True), watch)
    return watch, run


def main() -> None:
    if no_fleets():
        return
    with tempfile.TemporaryDirectory() as folder:
        watch, run = asyncio.run(soak(Path(folder)))
        records = read(run / "records.jsonl")
    ends = [record for record in records if isinstance(record, RoundFinished)]
    figure("rounds finished", len(ends), least=ROUNDS)
    figure("rounds without a quorum", sum(end.why == "void" for end in ends), most=0)
    figure("agents killed", watch.kills)
    figure("times a killed device joined again", sum(isinstance(r, DeviceJoined) and r.again for r in records))
    figure("device rounds lost", sum(isinstance(r, DeviceOut) for r in records))
    for number, (orchestrator, agent) in watch.memory.items():
        figure(f"after round {number}: orchestrator, MB", orchestrator)
        figure(f"after round {number}: agent of d1, MB", agent)
    (orchestrator0, agent0), (orchestrator1, agent1) = watch.memory[LOOKS[0]], watch.memory[LOOKS[-1]]
    figure("orchestrator: growth, MB", orchestrator1 - orchestrator0, most=GROWTH_MB)
    figure("agent: growth, MB", agent1 - agent0, most=GROWTH_MB)
