"""Simulated rounds of DTFL with many devices: 200 on digits, 100 to 1,000 on MNIST of which a tenth is drawn.

Each simulation is a process of its own, from the data to the report. On digits halves are trained together, one by one,
and together with a tenth of the devices drawn.
"""

from __future__ import annotations

import multiprocessing
import resource
import tempfile
import time
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from benchmarks._figures import figure, skip
from benchmarks._paths import ROOT
from orchestrator.experiment import Experiment, Simulation, Training
from orchestrator.runs.data import data_root
from orchestrator.runs.session import Watch
from orchestrator.simulation.run import SimulationRequest, simulate

LIMIT_S, DRAWN = 60, 0.1
DIGITS = {"batch_size": 32, "optimizer": {"name": "adam", "lr": 0.003}, "codec": {"dtype": "uint8", "zstd": True}}
MNIST = {"batch_size": 20, "optimizer": {"name": "adam", "lr": 0.001}, "sample": DRAWN}


class Took(NamedTuple):
    """Wall seconds, CPU seconds, and the most MiB of memory."""

    wall_s: float
    cpu_s: float
    memory_mib: float


def simulated(
    data: str, training: dict[str, Any], simulation: Simulation, devices: int, told: SimpleQueue[Took]
) -> None:
    start_s, used = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
    experiment = Experiment(
        name="many",
        fleet=str(ROOT / "profiles" / "fleets" / "dtfl-5.yaml"),
        data={"name": data},
        model={"name": "resnet-tiny"},
        methods=[{"name": "dtfl"}],
        training=msgspec.convert({"rounds": 1, "seed": 1, **training}, Training),
        simulation=simulation,
    )
    with tempfile.TemporaryDirectory() as name:
        simulate(SimulationRequest(experiment, Path(name) / "many.yaml", Path(name), devices=devices), Watch())
    now = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    told.put(Took(time.monotonic() - start_s, cpu_s, now.ru_maxrss / 1024))


def measure(data: str, training: dict[str, Any], simulation: Simulation, devices: int) -> Took:
    context = multiprocessing.get_context("spawn")
    told: SimpleQueue[Took] = context.SimpleQueue()
    process = context.Process(target=simulated, args=(data, training, simulation, devices, told))
    process.start()
    took = told.get()
    process.join()
    return took


def main() -> None:
    together = measure("digits", DIGITS, Simulation(), 200)
    alone = measure("digits", DIGITS, Simulation(batched=False), 200)
    drawn = measure("digits", DIGITS | {"sample": DRAWN}, Simulation(), 200)
    figure("digits, 200 devices, all in the round, s", together.wall_s, most=LIMIT_S)
    figure("the same one by one ÷ together", alone.wall_s / together.wall_s)
    figure(f"digits, 200 devices, {DRAWN:.0%} in the round, s", drawn.wall_s, most=LIMIT_S)
    if not (data_root() / "MNIST" / "raw").is_dir():
        skip("no MNIST/raw in EDGEBED_DATA, or ./data")
        return
    for devices, most in ((100, None), (300, None), (1000, LIMIT_S)):
        took = measure("mnist", MNIST, Simulation(cost="flops"), devices)
        figure(f"MNIST, {devices} devices, s of wall time", took.wall_s, most=most)
        figure(f"MNIST, {devices} devices, s of CPU time", took.cpu_s)
        figure(f"MNIST, {devices} devices, MiB at most", took.memory_mib)
