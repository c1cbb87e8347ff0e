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

import msgspec

from benchmarks._figures import figure, kept_folder, no_fleets
from benchmarks._paths import EXPERIMENTS
from benchmarks._runs import facts, finished, play_missing
from orchestrator.experiment import Experiment, Server, Simulation, load
from orchestrator.records.compare.sim_error import SimError, sim_error
from orchestrator.runs import session
from orchestrator.simulation.run import SimulationRequest, simulate

EACH, ALL = 0.15, 0.10


def main() -> None:
    if no_fleets(os.environ.get("SIMULATOR_BACKEND", "local")):
        return
    with kept_folder("SIMULATOR_FOLDER") as folder:
        measure(folder)


def measure(folder: Path) -> None:
    for name in os.environ.get("SIMULATOR_EXPERIMENTS", "methods,methods-mnist").split(","):
        path = EXPERIMENTS / f"{name}.yaml"
        wanted = experiment(load(path))
        if os.environ.get("SIMULATOR_REAL") != "no":
            asyncio.run(play_missing({folder / name: wanted}, path, os.environ.get("SIMULATOR_BACKEND", "local")))
        compare(folder / name, wanted, path)


def experiment(file: Experiment) -> Experiment:
    """The methods that are wanted, held to the reference."""
    rounds, seed = int(os.environ.get("SIMULATOR_ROUNDS", "6")), int(os.environ.get("SIMULATOR_SEED", "2"))
    cpus = float(os.environ.get("SIMULATOR_SERVER", "1"))
    names = os.environ.get("SIMULATOR_METHODS", ",".join(str(method["name"]) for method in file.methods)).split(",")
    return msgspec.structs.replace(
        file,
        name=f"seed{seed}",
        methods=[method for method in file.methods if method["name"] in names],
        training=msgspec.structs.replace(file.training, seed=seed, rounds=rounds, stop_at_target=False),
        speed=f"reference {os.environ.get('SIMULATOR_REFERENCE', 'x86-avx512')}",
        server=Server(cpus=cpus) if cpus else None,
        simulation=Simulation(),  # with the reference's costs, whatever the file simulates with
    )


def compare(folder: Path, wanted: Experiment, path: Path) -> None:
    """Simulate what was recorded, and print the errors."""
    real = finished(folder)
    methods = [method for method in wanted.methods if method["name"] in real]
    if not methods:
        return
    with tempfile.TemporaryDirectory() as made:
        request = SimulationRequest(msgspec.structs.replace(wanted, methods=methods), path, Path(made), built=True)
        names = [str(method["name"]) for method in methods]
        runs = zip(simulate(request, session.Watch()), names, strict=True)
        errors = [sim_error(facts(run), facts(real[name])) for run, name in runs]
    _show(path.stem, names, errors)


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
