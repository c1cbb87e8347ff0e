"""A busy loop beside known rounds of a run: which rounds are marked as disturbed, which wrongly, and what it did.

The run is FedAvg on five devices. In every second group of three rounds a rival runs: one busy thread, or one for each
core. Missed: such a round is not marked. False alarm: another round is.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks._figures import figure, no_fleets
from benchmarks._runs import small_request, small_run, write_fleet
from orchestrator.calibration.calibrate import Calibration
from orchestrator.fleet.host.cores import usable_cores
from orchestrator.records.account import load_summary
from orchestrator.records.types import Record, RoundFinished, RoundStarted
from orchestrator.runs import session

ROUNDS, GROUP, FIRST = 15, 3, 3
CPUS, EPOCHS = 0.3, 3
BUSY = "import hashlib\ndata = bytes(1 << 20)\nwhile True: hashlib.sha256(data).digest()"


def has_rival(round: int) -> bool:
    return round >= FIRST and (round - FIRST) // GROUP % 2 == 0


class Rivals(session.Watch):
    """Lets busy processes run from the start to the end of the rounds that are to be disturbed."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._rivals = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
        self._tell(signal.SIGSTOP)

    def record(self, folder: Path, record: Record) -> None:
        match record:
            case RoundStarted(round=number) if has_rival(number):
                self._tell(signal.SIGCONT)
            case RoundFinished():
                self._tell(signal.SIGSTOP)

    def _tell(self, what: signal.Signals) -> None:
        for rival in self._rivals:
            rival.send_signal(what)

    def end(self) -> None:
        for rival in self._rivals:
            rival.kill()
            rival.wait()


async def one_run(folder: Path, rivals: int) -> dict[str, Any]:
    write_fleet(folder, [(CPUS, 100)] * 5)
    training = {"rounds": ROUNDS, "batch_size": 32, "epochs": EPOCHS}
    small = small_run(small_request(folder, training, {"name": "fedavg"}))
    watch = Rivals(rivals)
    try:
        async with session.standing_fleet(small.spec, shards=small.data.shards) as controller:
            (run,) = await session.run_methods(small.request, controller, small.data, Calibration((), True), watch)
    finally:
        watch.end()
    return load_summary(run).as_dict()


def show(name: str, summary: dict[str, Any]) -> None:
    marks = {number - 1: bool(causes) for number, causes in zip(summary["number"], summary["disturbed"], strict=True)}
    for index, number in enumerate(summary["number"]):
        others, speed = summary["others_share"][index], summary["host_speed"][index]
        lost = max((values[index] or 0.0 for values in summary["not_got_s"].values()), default=0.0)
        print(
            f"    round {number:2d}  {'rival' if has_rival(number - 1) else '-':<6}"
            f"{summary['round_s'][index]:7.2f} s  others {0.0 if others is None else others:4.0%}"
            f"  speed {speed or 0.0:5.2f}  lost {lost:5.2f} s  marked: {' '.join(summary['disturbed'][index]) or 'no'}"
        )
    missed = [number for number, marked in marks.items() if has_rival(number) and not marked]
    false = [number for number, marked in marks.items() if marked and not has_rival(number)]
    with_rival = [s for n, s in zip(marks, summary["round_s"], strict=True) if has_rival(n)]
    without = [s for n, s in zip(marks, summary["round_s"], strict=True) if not has_rival(n)]
    figure(f"{name}: rounds with it that were not marked", len(missed), most=0, note=f"of {len(with_rival)}")
    figure(f"{name}: rounds without it that were marked", len(false), most=0, note=f"of {len(without)}")
    figure(f"{name}: median round with it ÷ without", median(with_rival) / median(without))


def main() -> None:
    if no_fleets():
        return
    cores = int(usable_cores())
    for name, rivals in (("no rival", 0), ("a busy thread", 1), (f"{cores} busy threads", cores)):
        with tempfile.TemporaryDirectory() as folder:
            summary = asyncio.run(one_run(Path(folder), rivals))
        if rivals:
            show(name, summary)
        else:
            figure(f"{name}: rounds that were marked", summary["disturbed_rounds"] or 0, most=0, note=f"of {ROUNDS}")
