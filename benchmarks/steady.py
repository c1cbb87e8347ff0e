"""How much the time of one fixed task varies: under a quota, with pacing, and held to a reference, on each backend.

Four devices of 0.2 CPU train the same four batches in every round. The deviation is that of a device's seconds over
the rounds after the first, ÷ their mean; the mean of the devices. Two rows: what is computed, and the whole task, in
which are its transfers and the orchestrator. The three ways run one after the other. Beside the held ones stand the
ceilings of their quotas ÷ their CPUs, as measured at the start.

Environment: STEADY_ROUNDS (12), STEADY_BACKENDS (local,docker), STEADY_SPEED (reference x86-avx512), STEADY_FOLDER
(keeps the runs there, and takes those that are there already).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, stdev

from benchmarks._figures import figure, kept_folder, no_fleets
from benchmarks._runs import facts, run, write_fleet
from orchestrator.records.account import load_summary

CPUS, RATE, DEVICES, DILATION = 0.2, 100, 4, 3.0
MOST = {"quota": None, "pacing": None, "hold": 0.01}
EXPERIMENT = f"""
name: steady
fleet: fleet.yaml
data: {{name: digits}}
model: {{name: resnet-tiny}}
dilation: {DILATION:g}
methods: [{{name: fedavg}}]
training: {{rounds: {os.environ.get("STEADY_ROUNDS", "12")}, batch_size: 32, max_batches: 4, stop_at_target: false}}
"""


def main() -> None:
    if no_fleets():
        return
    with kept_folder("STEADY_FOLDER") as folder:
        for backend in os.environ.get("STEADY_BACKENDS", "local,docker").split(","):
            place = folder / backend
            place.mkdir(exist_ok=True)
            write_fleet(place, [(CPUS, RATE)] * DEVICES, backend)
            (place / "experiment.yaml").write_text(EXPERIMENT)
            for way, most in MOST.items():
                _show(backend, way, most, _played(place, way))


def _played(place: Path, way: str) -> Path:
    if (done := next(iter((place / way).glob("runs/*/summary.json")), None)) is not None:
        return done.parent
    speed = os.environ.get("STEADY_SPEED", "reference x86-avx512") if way == "hold" else "host"
    grain = "quota" if way == "quota" else "pacing"
    return run(place, way, speed, "--set", f"grain={grain}")[0]


def _show(backend: str, way: str, most: float | None, folder: Path) -> None:
    summary = load_summary(folder)
    computed, whole = zip(*_seconds(folder), strict=True)
    ceilings = [each.ceiling_cpus / each.cpus for s in facts(folder).sessions for each in s.limits if each.ceiling_cpus]
    head = f", ceilings {min(ceilings):.2f} to {max(ceilings):.2f} × the CPUs" if ceilings else ""
    late = f", late rounds {summary.late_rounds}" if way == "hold" else ""
    note = f"mean {fmean(map(fmean, computed)):.3f} s, disturbed {summary.disturbed_rounds}{late}{head}"
    figure(f"{backend}, {way}: seconds of compute, sd ÷ mean", _spread(computed), most=most, note=note)
    figure(
        f"{backend}, {way}: seconds of a task, sd ÷ mean", _spread(whole), note=f"mean {fmean(map(fmean, whole)):.3f} s"
    )


def _spread(devices: Sequence[Sequence[float]]) -> float:
    return fmean(stdev(each) / fmean(each) for each in devices)


def _seconds(folder: Path) -> Iterator[tuple[list[float], list[float]]]:
    """Of each device: seconds of compute and of the whole task, in the rounds after the first."""
    rounds = [one for _, one in facts(folder).rounds()][1:]
    for device in rounds[0].done:
        computed = [one.updates[device].report.compute_s for one in rounds]
        yield computed, [one.done[device].seconds for one in rounds]
