"""A scenario with a cut, a freeze and a return, real and simulated: do both timelines tell the same story?

The same experiment runs on a real fleet, then in the simulator, calibrated from that run. Printed: both stories side
by side, how many of their lines agree, and how far apart these are.

Environment: STORY_METHODS (dtfl,fedavg), STORY_ROUNDS (12), STORY_BACKEND (local, or docker), STORY_FOLDER (keeps the
runs there, and takes real runs that are there already instead of new ones).
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import msgspec

from benchmarks._figures import figure, kept_folder, no_fleets
from benchmarks._paths import EXPERIMENTS
from orchestrator.experiment import Experiment, load
from orchestrator.records.reader import read
from orchestrator.records.run_index import sort
from orchestrator.runs import session
from orchestrator.simulation.run import SimulationRequest, simulate
from tests.story import Beside, agreement, side_by_side, story

EXPERIMENT = EXPERIMENTS / "scenario.yaml"
AGREE = 0.9
SPEED = "reference x86-avx512"


def main() -> None:
    if no_fleets():
        return
    with kept_folder("STORY_FOLDER") as runs, tempfile.TemporaryDirectory() as folder:
        for method in os.environ.get("STORY_METHODS", "dtfl,fedavg").split(","):
            tell(method, runs, Path(folder))


def experiment(method: str) -> Experiment:
    file = load(EXPERIMENT)
    rounds = int(os.environ.get("STORY_ROUNDS", "12"))
    training = msgspec.structs.replace(
        file.training, rounds=rounds, liveness_s=3.0, heartbeat_s=0.5, stop_at_target=False
    )
    return msgspec.structs.replace(
        file,
        name=f"story-{method}",
        methods=[{"name": method}],
        training=training,
        scenario="cut-freeze-return.yaml",
        speed=SPEED,
    )


def tell(method: str, folder: Path, made: Path) -> None:
    """Both stories of a method."""
    wanted = experiment(method)
    real = next((path.parent for path in sorted(folder.glob(f"{wanted.name}-*/summary.json"))), None)
    if real is None:
        backend = os.environ.get("STORY_BACKEND", "local")
        request = session.Request(wanted, EXPERIMENT, folder, backend=backend)
        (real,) = asyncio.run(session.run_experiment(request, session.Watch()))
    request_simulated = SimulationRequest(wanted, EXPERIMENT, made / "simulated")
    (simulated,) = simulate(request_simulated, session.Watch())
    told = [read(run / "records.jsonl") for run in (real, simulated)]
    facts = sort(told[0])
    print(f"  {method}, {facts.started.backend}, dilation {facts.dilation:.3g}:")
    show(method, side_by_side(*(story(records) for records in told)))


def show(method: str, lines: Sequence[Beside]) -> None:
    print(f"  {'real, s':>9} {'sim., s':>9}")
    for line in lines:
        times = (f"{at_s:9.2f}" if at_s is not None else f"{'–':>9}" for at_s in (line.real_s, line.simulated_s))
        print(f"  {' '.join(times)}  {line.text}")
    apart = [abs(line.apart_s) for line in lines if line.apart_s is not None]
    figure(
        f"{method}: share of lines that both stories have", agreement(lines), least=AGREE, note=f"{len(lines)} lines"
    )
    figure(f"{method}: s between two lines that agree, median", median(apart), note=f"largest {max(apart):.2f}")
