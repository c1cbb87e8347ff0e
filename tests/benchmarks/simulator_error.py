"""Error of the simulator on runs it was not calibrated on: a round's median error at most 10 %.

Calibrated on one seed of two methods, held against another seed and methods that it has not seen. Environment:
SIMULATOR_ROUNDS (6), SIMULATOR_BACKEND (local), SIMULATOR_METHODS (held out, by commas; none: those below),
SIMULATOR_FOLDER (keeps the runs there, and takes real runs that are there already instead of new ones),
SIMULATOR_COSTS (host: no calibration, but the costs of `edgebed profile host`, which must have been measured).
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from orchestrator.experiment import Experiment, load
from orchestrator.records.reader import read
from orchestrator.records.run_index import RunFacts, sort
from orchestrator.records.sim_error import SIMULATED, sim_error
from orchestrator.runs import session
from orchestrator.simulation.run import SimulationRequest, simulate
from tests.benchmarks._figures import figure, skip

EXPERIMENT = Path(__file__).parents[2] / "profiles" / "experiments" / "methods.yaml"
TAUGHT = ("dtfl", "fedavg")
HELD_OUT = ("dtfl", "fedavg", "fedprox", "feddrop", "splitfed", "s2fl")
OPTIONS: dict[str, dict[str, Any]] = {"dtfl": {"tiers": 7}}
LIMIT = 0.10


def experiment(seed: int, methods: tuple[str, ...]) -> Experiment:
    file = load(EXPERIMENT)
    rounds = int(os.environ.get("SIMULATOR_ROUNDS", "6"))
    training = msgspec.structs.replace(file.training, seed=seed, rounds=rounds, stop_at_target=False)
    chosen = [{"name": name, **OPTIONS.get(name, {})} for name in methods]
    return msgspec.structs.replace(file, name=f"seed{seed}", methods=chosen, training=training)


def real(folder: Path, seed: int, methods: tuple[str, ...]) -> dict[str, Path]:
    """Run folders by method: those that are there, and new ones for the others."""
    known = {run.started.method: path for path, run in _runs(folder, seed) if run.enforcement != SIMULATED}
    missing = tuple(name for name in methods if name not in known)
    if missing:
        backend = os.environ.get("SIMULATOR_BACKEND", "local")
        request = session.Request(experiment(seed, missing), EXPERIMENT, folder, backend=backend)
        paths = asyncio.run(session.run_experiment(request, session.Watch(session.quiet)))
        known |= dict(zip(missing, paths, strict=True))
    return {name: known[name] for name in methods}


def _runs(folder: Path, seed: int) -> list[tuple[Path, RunFacts]]:
    return [
        (path.parent, facts)
        for path in sorted(folder.glob(f"seed{seed}-*/records.jsonl"))
        for facts in (sort(read(path)),)
    ]


def measure(folder: Path) -> None:
    held_out = tuple(os.environ.get("SIMULATOR_METHODS", ",".join(HELD_OUT)).split(","))
    by_host = os.environ.get("SIMULATOR_COSTS") == "host"
    taught, others = {} if by_host else real(folder, 1, TAUGHT), real(folder, 2, held_out)
    request = SimulationRequest(
        experiment(2, held_out),
        EXPERIMENT,
        folder / "simulated",
        calibrate_from=tuple(taught.values()),
        save_calibration=None if by_host else folder / "calibration.yaml",
    )
    simulated = simulate(request, session.Watch(session.quiet))
    for path, name in zip(simulated, held_out, strict=True):
        error = sim_error(sort(read(path / "records.jsonl")), sort(read(others[name] / "records.jsonl")))
        assert error is not None
        seen = "another seed" if name in taught else "method not seen"
        what = f"{name}, {'costs of the host' if by_host else seen}"
        note = f"p90 {error.p90:.3f}, in all {error.total_error:+.3f}, same cuts {error.same_cuts:.2f}"
        figure(f"{what}: error of a round, median", error.median, most=LIMIT, note=note)


def main() -> None:
    if os.geteuid() != 0 and os.environ.get("SIMULATOR_BACKEND", "local") == "local":
        skip("needs root: network namespaces and cgroups")
        return
    kept = os.environ.get("SIMULATOR_FOLDER")
    if kept:
        measure(Path(kept))
        return
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder))
