"""What a hostile device costs: per attack what the records say, the orchestrator's memory growth and longest stall."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from pathlib import Path

from benchmarks._figures import figure, progress
from benchmarks._peer import memory_mb, reset_peak
from orchestrator.records.reader import read
from orchestrator.records.types import DeviceOut, Record, RoundFinished, RoundStarted
from orchestrator.runs import session
from tests.hostile.agent import ATTACKS
from tests.hostile.fleet import attacked

NAMES = 100_000
TICK_S = 0.005
MOST_STALL_S = 1.0
MOST_GROWTH_MB = 64.0


class TaskMetrics(session.Watch):
    """By round: how much the peak grew over what was held at its start, and the longest wait for the event loop."""

    def __init__(self) -> None:
        super().__init__()
        self.growth_mb: dict[int, float] = {}
        self.stall_s: dict[int, float] = {}
        self._round, self._start_mb = -1, 0.0

    def record(self, folder: Path, record: Record) -> None:
        if isinstance(record, RoundStarted):
            self._round = record.round
            reset_peak()
            self._start_mb = memory_mb("VmRSS")
        elif isinstance(record, RoundFinished):
            self.growth_mb[record.round] = memory_mb("VmHWM") - self._start_mb

    async def watch(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(TICK_S)
            late = time.monotonic() - before - TICK_S
            self.stall_s[self._round] = max(late, self.stall_s.get(self._round, 0.0))


async def measure(folder: Path) -> None:
    meter = TaskMetrics()
    watching = asyncio.create_task(meter.watch())
    try:
        async with attacked(folder, NAMES, meter) as work:
            (run,) = await work
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
    records = read(run / "records.jsonl")
    outs = {r.round: r for r in records if isinstance(r, DeviceOut)}
    for number, attack in enumerate(ATTACKS):
        out = outs.get(number)
        said = f"{out.device} {out.how}: {out.why[:90]}" if out else "merged"
        print(f"  {attack:34} {meter.growth_mb[number]:6.0f} MB {meter.stall_s[number]:6.3f} s  {said}")
    merged = [r.merged for r in records if isinstance(r, RoundFinished)]
    alone = sum(each == ("dev-1", "dev-3") for each in merged)
    attacks = range(1, len(ATTACKS))  # the first round loads what torch loads late
    figure("rounds in which all others were merged, and nobody else", alone, least=len(attacks))
    figure("largest growth in a round, MB", max(meter.growth_mb[n] for n in attacks), most=MOST_GROWTH_MB)
    figure("longest stall, s", max(meter.stall_s[n] for n in attacks), most=MOST_STALL_S)


def main() -> None:
    over = progress("a round per attack")
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(Path(folder)))
    over()
