"""Error of the simulator, method by method, with the same reference on both sides: a round's median error at most 15 %,
of all rounds 10 %.

Real runs are held to a reference, on a seed that nothing was fitted to, and simulated with that reference. Both take
its compute seconds. What differs is links, queues, the server's order, waits, and what the orchestrator does at the
speed of its host. For each method the parts of a device's time follow: simulated − real, as a share of its real whole.

Environment: SIMULATOR_EXPERIMENTS (methods,methods-mnist), SIMULATOR_METHODS (all of the file), SIMULATOR_ROUNDS (6),
SIMULATOR_REFERENCE (x86-avx512), SIMULATOR_SERVER (1: CPUs of the server; 0: it is not held), SIMULATOR_SEED (2),
SIMULATOR_BACKEND (local), SIMULATOR_FOLDER (keeps the runs there: real runs that are there already are taken, and what
is interrupted goes on), SIMULATOR_REAL (no: no new real runs).
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

import msgspec

from benchmarks._figures import figure, skip
from benchmarks._paths import EXPERIMENTS
from benchmarks._runs import opened
from orchestrator.experiment import Experiment, Server, load
from orchestrator.records.compare.sim_error import SimError, sim_error
from orchestrator.records.reader import read
from orchestrator.records.run_index import RunFacts, sort
from orchestrator.runs import session
from orchestrator.simulation.run import SimulationRequest, simulate

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


def experiment(path: Path, methods: Sequence[dict[str, Any]]) -> Experiment:
    file = load(path)
    rounds, seed = int(os.environ.get("SIMULATOR_ROUNDS", "6")), int(os.environ.get("SIMULATOR_SEED", "2"))
    cpus = float(os.environ.get("SIMULATOR_SERVER", "1"))
    return msgspec.structs.replace(
        file,
        name=f"seed{seed}",
        methods=list(methods),
        training=msgspec.structs.replace(file.training, seed=seed, rounds=rounds, stop_at_target=False),
        speed=f"reference {os.environ.get('SIMULATOR_REFERENCE', 'x86-avx512')}",
        server=Server(cpus=cpus) if cpus else None,
    )


def wanted(path: Path) -> list[dict[str, Any]]:
    """The methods, with their options."""
    methods = load(path).methods
    names = os.environ.get("SIMULATOR_METHODS", ",".join(str(method["name"]) for method in methods)).split(",")
    return [method for method in methods if method["name"] in names]


async def play(folder: Path, path: Path) -> None:
    """Real runs of what the folder lacks, on one standing fleet."""
    missing = [method for method in wanted(path) if str(method["name"]) not in recorded(folder)]
    if not missing:
        return
    backend = os.environ.get("SIMULATOR_BACKEND", "local")
    watch = session.Watch(session.quiet)
    async with opened(experiment(path, missing), path, backend) as fleet:
        for method in missing:
            request = session.Request(experiment(path, [method]), path, folder, backend=backend)
            await session.run_methods(request, fleet.controller, fleet.data, fleet.calibration, watch)


def recorded(folder: Path) -> dict[str, Path]:
    """Folders of finished real runs, by method."""
    return {facts(p.parent).started.method: p.parent for p in sorted(folder.glob("seed*/summary.json"))}


def facts(folder: Path) -> RunFacts:
    return sort(read(folder / "records.jsonl"))


def compare(folder: Path, path: Path) -> None:
    """Simulate what was recorded, and print the errors."""
    real = recorded(folder)
    methods = [method for method in wanted(path) if method["name"] in real]
    if not methods:
        return
    with tempfile.TemporaryDirectory() as made:
        request = SimulationRequest(experiment(path, methods), path, Path(made), built=True)
        runs = simulate(request, session.Watch(session.quiet))
        errors = [
            sim_error(facts(run), facts(real[str(method["name"])])) for run, method in zip(runs, methods, strict=True)
        ]
    _show(path.stem, [str(method["name"]) for method in methods], errors)


def _show(what: str, names: Sequence[str], errors: Sequence[SimError | None]) -> None:
    shares = []
    for name, error in zip(names, errors, strict=True):
        if error is None:
            continue
        shares += [abs(each.error) for each in error.rounds]
        note = f"p90 {error.p90:.3f}, in all {error.total_error:+.3f}, same cuts {error.same_cuts:.2f}"
        figure(f"{what}: {name}, error of a round, median", error.median, most=EACH, note=note)
        print(f"    {_parts(error)}")
    if shares:
        figure(f"{what}: all {len(shares)} rounds, median", median(shares), most=ALL)


def _parts(error: SimError) -> str:
    """Mean over the devices, by phase."""
    phases = dict.fromkeys(each.phase for each in error.devices)
    found = {phase: mean(each.share for each in error.devices if each.phase == phase) for phase in phases}
    return ", ".join(f"{phase} {share:+.3f}" for phase, share in found.items())
