"""200 devices, one round of DTFL on digits, simulated in a minute; halves trained together against one by one."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import msgspec

from benchmarks._figures import figure
from benchmarks._paths import ROOT
from orchestrator.experiment import Experiment, Simulation, Training
from orchestrator.runs.session import Watch, quiet
from orchestrator.simulation.run import SimulationRequest, simulate

DEVICES, LIMIT_S = 200, 60
FLEET = ROOT / "profiles" / "fleets" / "dtfl-5.yaml"
DRAWN = 0.1


def experiment(sample: float, *, batched: bool) -> Experiment:
    wanted = {
        "rounds": 1,
        "batch_size": 32,
        "optimizer": {"name": "adam", "lr": 0.003},
        "codec": {"dtype": "uint8", "zstd": True},
        "sample": sample,
        "seed": 1,
    }
    return Experiment(
        name="many",
        fleet=str(FLEET),
        model={"name": "resnet-tiny"},
        methods=[{"name": "dtfl"}],
        training=msgspec.convert(wanted, Training),
        simulation=Simulation(batched=batched),
    )


def seconds(folder: Path, sample: float, *, batched: bool) -> float:
    """Wall seconds of the whole simulation: data, profiling of the cuts, one round, evaluation, report."""
    start = time.monotonic()
    request = SimulationRequest(experiment(sample, batched=batched), folder / "many.yaml", folder, devices=DEVICES)
    simulate(request, Watch(quiet))
    return time.monotonic() - start


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        together = seconds(folder, 1.0, batched=True)
        alone = seconds(folder, 1.0, batched=False)
        drawn = seconds(folder, DRAWN, batched=True)
    figure(f"{DEVICES} devices, all in the round, s", together, most=LIMIT_S)
    figure("the same one by one ÷ together", alone / together)
    figure(f"{DEVICES} devices, {DRAWN:.0%} in the round, s", drawn, most=LIMIT_S)
