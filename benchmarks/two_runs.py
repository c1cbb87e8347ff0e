"""Two runs at once on one host: what each prints, and that their quotas fit together.

First two fleets that fit beside each other, then two that each want the whole host.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks._figures import figure, no_fleets
from benchmarks._runs import write_fleet
from orchestrator.fleet.host.cores import usable_cores
from orchestrator.fleet.host.cpus import standing, taken_cpus

EDGEBED = [sys.executable, "-c", "from orchestrator.cli import main; main()"]
EXPERIMENT = """
name: {name}
fleet: fleet.yaml
model: {{name: resnet-tiny}}
methods: [{{name: fedavg}}]
training: {{rounds: 4, batch_size: 32, max_batches: 4}}
"""


def start(folder: Path, name: str, cpus: float) -> subprocess.Popen[str]:
    folder.mkdir()
    write_fleet(folder, [(cpus, 100)] * 2, name=name)
    path = folder / "experiment.yaml"
    path.write_text(EXPERIMENT.format(name=name))
    command = [*EDGEBED, "run", str(path), "--allow-uncalibrated"]
    environment = os.environ | {"EDGEBED_RUNS": str(folder / "runs")}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def together(cpus: float) -> None:
    """Two runs of two devices of `cpus` each."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runs = {each: start(folder / each, each, cpus) for each in ("first", "second")}
        most = 0.0
        while any(run.poll() is None for run in runs.values()):
            most = max(most, taken_cpus(standing()))
            time.sleep(0.2)
        for each, run in runs.items():
            assert run.stdout is not None
            print(f"    {each} (exit code {run.returncode}):")
            for line in run.stdout.read().splitlines():
                if any(word in line for word in WORDS):
                    print(f"      {line.strip()}")
        figure("CPUs taken by both, reserves included", most, most=usable_cores() + 0.001)


WORDS = ("other fleets", "dilation", "disturbed", "Hint", "rror", "round,")
"""Lines that are shown."""


def main() -> None:
    if no_fleets():
        return
    cores = usable_cores()
    print("  two fleets that fit beside each other:")
    together(cores / 16)
    print("  two fleets that each want the whole host:")
    together(cores)
