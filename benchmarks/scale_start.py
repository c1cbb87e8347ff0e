"""Seconds until many devices on one host stand, are limited, calibrated and through a first round, and the CPU seconds
of all processes that this takes: on a slow or busy host these change less.

The end of the fleet is not counted. One line per start, printed as soon as it has ended. Every start is kept in a file,
and a later call goes on: `SCALE_FILE` (default: scale_start.jsonl in the current folder), `SCALE_STARTS` (10, all calls
together), `SCALE_NOW` (10, starts of this call), `SCALE_DEVICES` (200), `SCALE_CPUS` (0.0075), `SCALE_MBIT` (2, each
way), `SCALE_BACKEND` (local).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import psutil

from benchmarks._figures import figure, no_fleets
from benchmarks._runs import HIDDEN, small_request, write_fleet
from edgebed.errors import EdgebedError
from orchestrator.runs import session

MOST_S = 60.0
PHASES = {
    "preparing": "start",
    "waiting": "agents",
    "limits are on": "limits",
    "calibrating": "calibration",
    "run ": "round",
}
"""First words of a line of the run -> the phase that begins there, or ends with "limits are on"."""


class Start(msgspec.Struct):
    """One start: seconds of its phases in order, CPU seconds of this process and all below it, and how it ended."""

    devices: int
    seconds: dict[str, float]
    dilation: str
    passed: bool
    said: str
    cpu_s: float = 0.0  # 0: an older version kept it

    @property
    def total_s(self) -> float:
        return sum(self.seconds.values())

    def __str__(self) -> str:
        parts = ", ".join(f"{phase} {took:.1f}" for phase, took in self.seconds.items())
        return f"{self.total_s:5.1f} s, {self.cpu_s:.1f} CPU s ({parts}); {self.dilation} {self.said}".rstrip()


def used_s() -> float:
    """CPU seconds of this process, of all below it that are there, and of those that have ended."""
    found, own = 0.0, psutil.Process()
    for process in (own, *own.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            found += sum(process.cpu_times()[:4])
    return found


class Clock(session.Watch):
    """Seconds of the phases of one start, from the lines that the run tells its user, up to the end of its round, and
    the CPU seconds until then."""

    def __init__(self) -> None:
        super().__init__(self._notify)
        self.seconds: dict[str, float] = {}
        self.dilation = ""
        self.cpu_s, self._used_s = 0.0, used_s()
        self._phase, self._begun = "data", time.monotonic()

    def _notify(self, line: str) -> None:
        for words, phase in PHASES.items():
            if line.startswith(words):
                self._enter(phase)
        if line.startswith("limits are on"):
            self.dilation = line.partition("; ")[2]

    def round(self, *_: Any) -> None:
        self._enter("")
        self.cpu_s = used_s() - self._used_s

    def _enter(self, phase: str) -> None:
        now = time.monotonic()
        if self._phase:
            self.seconds[self._phase] = self.seconds.get(self._phase, 0.0) + now - self._begun
        self._phase, self._begun = phase, now


def request(folder: Path, devices: int) -> session.Request:
    """One round of FedAvg with one batch of a device's own samples."""
    cpus, rate = (float(os.environ.get(f"SCALE_{name}", value)) for name, value in (("CPUS", "0.0075"), ("MBIT", "2")))
    write_fleet(folder, [(cpus, rate)] * devices, os.environ.get("SCALE_BACKEND", "local"))
    return small_request(folder, {"rounds": 1, "batch_size": 4, "max_batches": 1}, {"name": "fedavg"}, HIDDEN)


def one_start(devices: int) -> Start:
    """A start that failed says why, another which rows were measured again."""
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        try:
            (run,) = asyncio.run(session.run_experiment(request(Path(folder), devices), clock))
        except EdgebedError as error:
            clock.round()
            return Start(devices, clock.seconds, clock.dilation, False, str(error), clock.cpu_s)
        rows = msgspec.json.decode((run / "calibration.json").read_bytes())
    again = Counter(row["quantity"] for row in rows if ", try " in row["condition"])
    said = ", ".join(f"{count} rows of {quantity} measured again" for quantity, count in again.items())
    return Start(devices, clock.seconds, clock.dilation, True, said, clock.cpu_s)


def main() -> None:
    if no_fleets():
        return
    devices, wanted, now = (
        int(os.environ.get(f"SCALE_{name}", value))
        for name, value in (("DEVICES", "200"), ("STARTS", "10"), ("NOW", "10"))
    )
    kept = Path(os.environ.get("SCALE_FILE", "scale_start.jsonl"))
    starts = [msgspec.json.decode(line, type=Start) for line in kept.read_bytes().splitlines()] if kept.exists() else []
    starts = [start for start in starts if start.devices == devices]
    for number, start in enumerate(starts, 1):
        print(f"  start {number}: {start} (kept)", flush=True)
    for number in range(len(starts) + 1, min(wanted, len(starts) + now) + 1):
        starts.append(one_start(devices))
        with kept.open("ab") as file:
            file.write(msgspec.json.encode(starts[-1]) + b"\n")
        print(f"  start {number}: {starts[-1]}", flush=True)
    totals = [start.total_s for start in starts]
    figure(f"{devices} devices: seconds of a start and one round, median", median(totals), most=MOST_S)
    figure(f"{devices} devices: the longest", max(totals), most=MOST_S)
    if known := [start.cpu_s for start in starts if start.cpu_s]:
        figure(f"{devices} devices: CPU seconds, median", median(known), note=f"{min(known):.1f} to {max(known):.1f}")
    passed = sum(start.passed and start.total_s <= MOST_S for start in starts)
    figure(f"{devices} devices: starts that passed in time, of {len(starts)}", passed, least=len(starts))
