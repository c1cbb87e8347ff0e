"""Seconds per round with the page open ÷ without, five devices on this host: at most 1.02.

One run; every BLOCK rounds somebody looks at the page, then looks away. The first round after each change is left out,
and each block with the page is held against the one just before it: a shared host drifts by more than is asked for.
With a browser on this very host its own drawing counts too; a client of the stream alone shows what the server costs.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks._figures import figure, no_fleets, skip
from benchmarks._paths import ROOT
from benchmarks._runs import TIER, TWO_BATCHES, small_request, small_run, write_fleet
from orchestrator.calibration.calibrate import Calibration
from orchestrator.dashboard.serve import PageAddress
from orchestrator.dashboard.subprocess_server import page_beside
from orchestrator.runs import session

BLOCK, BLOCKS, DEVICES = 5, 60, 5
RANK = 10
"""Of 30 ordered ratios the 10th and the 21st hold the median with 95 %."""


class Looker(session.Watch):
    """Opens and closes the page as rounds go by; `blocks` has the seconds of rounds, without and with it in turn."""

    def __init__(self, address: str, viewer: subprocess.Popen[str]) -> None:
        super().__init__()
        self._address, self._viewer = address, viewer
        self.blocks: list[list[float]] = [[] for _ in range(BLOCKS)]
        self._count, self._run = 0, ""

    def run(self, method: str, folder: Path, rounds: int) -> None:
        self._run = folder.name

    def round(self, method: str, progress: Any, result: Any, seconds: float, dilation: float) -> None:
        block, place = divmod(self._count, BLOCK)
        if place > 0:
            self.blocks[block].append(seconds)
        self._count += 1
        if place == BLOCK - 1:
            self._look(block % 2 == 0)

    def _look(self, at_it: bool) -> None:
        assert self._viewer.stdin is not None
        self._viewer.stdin.write(f"{self._address}#/run/{self._run}\n" if at_it else "\n")
        self._viewer.stdin.flush()


@contextlib.contextmanager
def viewer(kind: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "benchmarks._page", kind]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline().strip() == "ready"
        yield process
    finally:
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def one_run(folder: Path, kind: str) -> list[list[float]]:
    write_fleet(folder, [(0.2, 100)] * DEVICES)
    small = small_run(small_request(folder, {"rounds": BLOCK * BLOCKS, **TWO_BATCHES}, TIER))
    said: list[str] = []
    children = set(psutil.Process().children())
    with (
        page_beside(folder / "runs", small.request.experiment.name, PageAddress(), said.append),
        viewer(kind) as process,
    ):
        watch = Looker(said[0].removeprefix("Live page: "), process)
        (server,) = set(psutil.Process().children()) - children - {psutil.Process(process.pid)}
        async with session.standing_fleet(small.spec, shards=small.data.shards) as controller:
            before, start = server.cpu_times(), time.monotonic()
            await session.run_methods(small.request, controller, small.data, Calibration((), True), watch)
            used = sum(server.cpu_times()[:2]) - sum(before[:2])
            figure(f"CPUs that the page's server used, open half the time ({kind})", used / (time.monotonic() - start))
    return watch.blocks


def main() -> None:
    if no_fleets():
        return
    for kind in ("client", "browser"):
        if kind == "browser" and shutil.which("chromium") is None:
            skip("no Chromium on this host")
            continue
        with tempfile.TemporaryDirectory() as folder:
            middles = [median(block) for block in asyncio.run(one_run(Path(folder), kind))]
        ratios = sorted(with_it / without for without, with_it in zip(middles[::2], middles[1::2], strict=True))
        note = f"95 %: {ratios[RANK - 1]:.3f} to {ratios[-RANK]:.3f}; {median(middles[::2]) * 1e3:.0f} ms without"
        figure(f"round with the page open ÷ without ({kind})", median(ratios), most=1.02, note=note)
