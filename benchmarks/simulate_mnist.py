"""A simulated round of DTFL on MNIST, with 100, 300 and 1,000 devices of which a tenth is drawn: seconds and memory."""

from __future__ import annotations

import multiprocessing
import resource
import tempfile
import time
from pathlib import Path

import msgspec

from benchmarks._figures import figure, skip
from benchmarks._paths import ROOT
from orchestrator.experiment import Experiment, Simulation, Training
from orchestrator.runs.data import data_root
from orchestrator.runs.session import Watch, quiet
from orchestrator.simulation.run import SimulationRequest, simulate

DEVICES, LIMIT_S = (100, 300, 1000), 60


def experiment() -> Experiment:
    wanted = {"rounds": 1, "batch_size": 20, "sample": 0.1, "seed": 1, "optimizer": {"name": "adam", "lr": 0.001}}
    return Experiment(
        name="mnist",
        fleet=str(ROOT / "profiles" / "fleets" / "dtfl-5.yaml"),
        data={"name": "mnist"},
        model={"name": "resnet-tiny"},
        methods=[{"name": "dtfl"}],
        training=msgspec.convert(wanted, Training),
        simulation=Simulation(cost="flops"),
    )


def simulated(devices: int, told: multiprocessing.SimpleQueue[tuple[float, float, float]]) -> None:
    """Tell wall seconds, CPU seconds and the most MiB of memory of the whole simulation, from data to report."""
    start_s, used = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
    with tempfile.TemporaryDirectory() as name:
        simulate(SimulationRequest(experiment(), Path(name) / "mnist.yaml", Path(name), devices=devices), Watch(quiet))
    now = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    told.put((time.monotonic() - start_s, cpu_s, now.ru_maxrss / 1024))


def main() -> None:
    if not (data_root() / "MNIST" / "raw").is_dir():
        skip("no MNIST/raw in EDGEBED_DATA, or ./data")
        return
    context = multiprocessing.get_context("spawn")
    for devices in DEVICES:
        told: multiprocessing.SimpleQueue[tuple[float, float, float]] = context.SimpleQueue()
        process = context.Process(target=simulated, args=(devices, told))
        process.start()
        wall_s, cpu_s, memory_mib = told.get()
        process.join()
        most = LIMIT_S if devices == DEVICES[-1] else None
        figure(f"{devices} devices, s of wall time", wall_s, most=most)
        figure(f"{devices} devices, s of CPU time", cpu_s)
        figure(f"{devices} devices, MiB at most", memory_mib)
