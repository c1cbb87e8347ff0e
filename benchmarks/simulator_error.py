"""Error of the simulator, method by method: a round's median error at most 15 %, of all rounds 10 %.

Calibrated on one seed of DTFL and FedAvg only, and held against another seed of all methods; and with the costs of
`edgebed profile host` alone, where they were measured. Also: the error of DTFL's and FedAvg's other real runs, taken as
the prediction, which no simulator can beat for long.

Environment: SIMULATOR_EXPERIMENTS (methods,methods-mnist), SIMULATOR_METHODS (all of the file), SIMULATOR_ROUNDS (6),
SIMULATOR_COSTS (taught,host), SIMULATOR_SEED (2: of the runs to be predicted), SIMULATOR_BACKEND (local),
SIMULATOR_FOLDER (keeps the runs there: real runs that are there already are taken, and what is interrupted goes on),
SIMULATOR_REAL (no: no new real runs).
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from benchmarks._figures import figure, skip
from benchmarks._paths import EXPERIMENTS
from benchmarks._runs import opened
from orchestrator.experiment import Experiment, load
from orchestrator.records.compare.sim_error import SimError, sim_error
from orchestrator.records.reader import read
from orchestrator.records.run_index import RunFacts, sort
from orchestrator.runs import session
from orchestrator.simulation import host_costs
from orchestrator.simulation.run import SimulationRequest, simulate

TAUGHT = ("dtfl", "fedavg")
TEACHING, HELD_OUT = 1, int(os.environ.get("SIMULATOR_SEED", "2"))
"""Seeds of the runs to calibrate from, and of those that the simulator is held against."""

EACH, ALL = 0.15, 0.10


def main() -> None:
    if os.geteuid() != 0 and os.environ.get("SIMULATOR_BACKEND", "local") == "local":
        skip("needs root: network namespaces and cgroups")
        return
    if kept := os.environ.get("SIMULATOR_FOLDER"):
        measure(Path(kept))
        return
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder))


def measure(folder: Path) -> None:
    for name in os.environ.get("SIMULATOR_EXPERIMENTS", "methods,methods-mnist").split(","):
        path = EXPERIMENTS / f"{name}.yaml"
        runs = folder / name
        runs.mkdir(parents=True, exist_ok=True)
        if os.environ.get("SIMULATOR_REAL") != "no":
            asyncio.run(play(runs, path))
        compare(runs, path)


def experiment(path: Path, seed: int, methods: Sequence[dict[str, Any]]) -> Experiment:
    file = load(path)
    rounds = int(os.environ.get("SIMULATOR_ROUNDS", "6"))
    training = msgspec.structs.replace(file.training, seed=seed, rounds=rounds, stop_at_target=False)
    return msgspec.structs.replace(file, name=f"seed{seed}", methods=list(methods), training=training)


def wanted(path: Path) -> list[dict[str, Any]]:
    """The methods that are held out, with their options."""
    methods = load(path).methods
    names = os.environ.get("SIMULATOR_METHODS", ",".join(str(method["name"]) for method in methods)).split(",")
    return [method for method in methods if method["name"] in names]


async def play(folder: Path, path: Path) -> None:
    """Real runs of what the folder lacks, on one standing fleet."""
    taught = [method for method in load(path).methods if method["name"] in TAUGHT]
    parts = [(TEACHING, method) for method in taught] + [(HELD_OUT, method) for method in wanted(path)]
    missing = [(seed, method) for seed, method in parts if str(method["name"]) not in recorded(folder, seed)]
    if not missing:
        return
    backend = os.environ.get("SIMULATOR_BACKEND", "local")
    watch = session.Watch(session.quiet)
    async with opened(experiment(path, HELD_OUT, taught), path, backend) as fleet:
        for seed, method in missing:
            request = session.Request(experiment(path, seed, [method]), path, folder, backend=backend)
            await session.run_methods(request, fleet.controller, fleet.data, fleet.calibration, watch)


def recorded(folder: Path, seed: int) -> dict[str, Path]:
    """Folders of finished real runs, by method."""
    return {facts(p.parent).started.method: p.parent for p in sorted(folder.glob(f"seed{seed}-*/summary.json"))}


def facts(folder: Path) -> RunFacts:
    return sort(read(folder / "records.jsonl"))


def compare(folder: Path, path: Path) -> None:
    """Simulate what was recorded, and print the errors."""
    taught, real = recorded(folder, TEACHING), recorded(folder, HELD_OUT)
    methods = [method for method in wanted(path) if method["name"] in real]
    runs = {str(method["name"]): facts(real[str(method["name"])]) for method in methods}
    with tempfile.TemporaryDirectory() as made:
        for costs in os.environ.get("SIMULATOR_COSTS", "taught,host").split(","):
            request = _request(costs, experiment(path, HELD_OUT, methods), path, Path(made), taught)
            if request is not None and methods:
                simulated = simulate(request, session.Watch(session.quiet))
                errors = [sim_error(facts(run), runs[name]) for run, name in zip(simulated, runs, strict=True)]
                _show(f"{path.stem}, {costs}", list(runs), errors)
    others = {name: facts(run) for name, run in taught.items() if name in runs}
    _show(f"{path.stem}, another real run", list(others), [sim_error(run, runs[n]) for n, run in others.items()])


def _request(
    costs: str, wanted: Experiment, path: Path, made: Path, taught: Mapping[str, Path]
) -> SimulationRequest | None:
    """The simulation with these costs; None where they are not known."""
    if costs == "taught":
        sources = tuple(taught[name] for name in TAUGHT if name in taught)
        return SimulationRequest(wanted, path, made, calibrate_from=sources, built=True) if sources else None
    if host_costs.known() is None:
        skip("the costs of the host are not known: `edgebed profile host`")
        return None
    by_host = msgspec.structs.replace(wanted, simulation=msgspec.structs.replace(wanted.simulation, cost="host"))
    return SimulationRequest(by_host, path, made, built=True)


def _show(what: str, names: Sequence[str], errors: Sequence[SimError | None]) -> None:
    shares = []
    for name, error in zip(names, errors, strict=True):
        if error is None:
            continue
        shares += [abs(each.error) for each in error.rounds]
        note = f"p90 {error.p90:.3f}, in all {error.total_error:+.3f}, same cuts {error.same_cuts:.2f}"
        figure(f"{what}: {name}, error of a round, median", error.median, most=EACH, note=note)
    if shares:
        figure(f"{what}: all {len(shares)} rounds, median", median(shares), most=ALL)
