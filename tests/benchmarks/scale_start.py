"""Seconds until many devices on one host stand, are limited, calibrated and through a first round.

Environment: SCALE_DEVICES (200), SCALE_STARTS (10), SCALE_CPUS (0.0075), SCALE_MBIT (2, each way),
SCALE_BACKEND (local). One line per start, printed as soon as it has ended.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median

import msgspec

from edgebed.errors import EdgebedError
from orchestrator.experiment import Experiment, Training
from orchestrator.runs import session
from tests.benchmarks._figures import figure, skip

MOST_S = 60.0
PHASES = {
    "preparing": "start",
    "waiting": "agents",
    "limits are on": "limits",
    "calibrating": "calibration",
    "run ": "round",
}
"""First words of a line of the run -> the phase that begins there, or ends with "limits are on"."""


class Clock:
    """Seconds of the phases of one start, from the lines that the run tells its user."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.dilation = ""
        self._phase, self._begun = "data", time.monotonic()

    def notify(self, line: str) -> None:
        for words, phase in PHASES.items():
            if line.startswith(words):
                self._enter(phase)
        if line.startswith("limits are on"):
            self.dilation = line.partition("; ")[2]

    def end(self) -> None:
        self._enter("")

    def _enter(self, phase: str) -> None:
        now = time.monotonic()
        self.seconds[self._phase] = self.seconds.get(self._phase, 0.0) + now - self._begun
        self._phase, self._begun = phase, now


def request(folder: Path, devices: int) -> session.Request:
    """One round of FedAvg with one batch of a device's own samples."""
    cpus, rate = (float(os.environ.get(f"SCALE_{name}", value)) for name, value in (("CPUS", "0.0075"), ("MBIT", "2")))
    (folder / "small.yaml").write_text(
        f"name: small\ncpus: {cpus:g}\nuplink_mbit_s: {rate:g}\ndownlink_mbit_s: {rate:g}\nmemory_mib: 1024\n"
    )
    backend = os.environ.get("SCALE_BACKEND", "local")
    (folder / "fleet.yaml").write_text(
        f"name: many\nbackend: {backend}\ndevices: [{{profile: small.yaml, count: {devices}}}]\n"
    )
    experiment = Experiment(
        name="scale",
        fleet="fleet.yaml",
        model={"name": "fcnn", "hidden": [32]},
        methods=[{"name": "fedavg"}],
        training=msgspec.convert({"rounds": 1, "batch_size": 4, "max_batches": 1}, Training),
    )
    return session.Request(experiment, folder / "experiment.yaml", folder / "runs")


def one_start(devices: int) -> tuple[Clock, bool, str]:
    """The times of one start; whether it passed; why it failed, or which rows were measured again."""
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        try:
            (run,) = asyncio.run(session.run_experiment(request(Path(folder), devices), session.Watch(clock.notify)))
        except EdgebedError as error:
            return clock, False, str(error)
        finally:
            clock.end()
        rows = msgspec.json.decode((run / "calibration.json").read_bytes())
    again = Counter(row["quantity"] for row in rows if ", try " in row["condition"])
    return clock, True, ", ".join(f"{count} rows of {quantity} measured again" for quantity, count in again.items())


def main() -> None:
    if os.geteuid() != 0:
        skip("needs root: network namespaces and cgroups")
        return
    devices, starts = int(os.environ.get("SCALE_DEVICES", "200")), int(os.environ.get("SCALE_STARTS", "10"))
    totals, passed = [], 0
    for number in range(1, starts + 1):
        clock, good, said = one_start(devices)
        passed += good
        seconds = sum(clock.seconds.values())
        totals.append(seconds)
        parts = ", ".join(f"{phase} {took:.1f}" for phase, took in clock.seconds.items())
        print(f"  start {number}: {seconds:5.1f} s ({parts}); {clock.dilation} {said}".rstrip(), flush=True)
    figure(f"{devices} devices: seconds of a start and one round, median", median(totals), most=MOST_S)
    figure(f"{devices} devices: the longest", max(totals), most=MOST_S)
    figure(f"{devices} devices: starts that passed", passed, least=starts)
