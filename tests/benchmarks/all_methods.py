"""All methods on one fleet, and the simulator's error for each, calibrated on the same methods with another seed.

(`simulator_error` holds the simulator against methods that its calibration has not seen.)

Environment: METHODS_EXPERIMENT (methods | methods-mnist), METHODS_BACKEND (local), METHODS_ROUNDS (those of the file),
METHODS_FOLDER (keeps the runs there, and takes real runs that are there already instead of new ones).
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from orchestrator import session
from orchestrator.experiment import Experiment, load
from orchestrator.records.facts import RunFacts, sort
from orchestrator.records.quantities import quantity
from orchestrator.records.reader import read
from orchestrator.records.sim_error import SimError, sim_error
from orchestrator.records.summary import load_summary
from orchestrator.simulation.run import SimulationRequest, simulate
from tests.benchmarks._figures import skip

EXPERIMENTS = Path(__file__).parents[2] / "profiles" / "experiments"
TAUGHT_ROUNDS = 6
LIMIT = 0.10


def main() -> None:
    if os.geteuid() != 0 and os.environ.get("METHODS_BACKEND", "local") == "local":
        skip("needs root: network namespaces and cgroups")
        return
    if kept := os.environ.get("METHODS_FOLDER"):
        measure(Path(kept))
        return
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder))


def measure(folder: Path) -> None:
    path = EXPERIMENTS / f"{os.environ.get('METHODS_EXPERIMENT', 'methods')}.yaml"
    experiment = load(path)
    rounds = int(os.environ.get("METHODS_ROUNDS", experiment.training.rounds))
    experiment = _with(experiment, rounds=rounds)
    teaching = _with(experiment, seed=2, rounds=TAUGHT_ROUNDS, stop_at_target=False)
    lessons = _real(teaching, path, folder / "taught")
    runs = _real(experiment, path, folder / "real")
    request = SimulationRequest(
        experiment,
        path,
        folder / "simulated",
        calibrate_from=tuple(lessons),
        save_calibration=folder / "calibration.yaml",
    )
    simulated = simulate(request, session.Watch(session.quiet))
    errors = [sim_error(_facts(a), _facts(b)) for a, b in zip(simulated, runs, strict=True)]
    _show([load_summary(run) for run in runs], errors)


def _with(experiment: Experiment, methods: list[dict[str, Any]] | None = None, **training: Any) -> Experiment:
    return msgspec.structs.replace(
        experiment,
        methods=experiment.methods if methods is None else methods,
        training=msgspec.structs.replace(experiment.training, **training),
    )


def _real(experiment: Experiment, path: Path, folder: Path) -> list[Path]:
    """The run of each method, in their order: those that are there, and new ones for the others."""
    known = {_facts(p.parent).started.method: p.parent for p in sorted(folder.glob("*/summary.json"))}
    missing = [method for method in experiment.methods if method["name"] not in known]
    if missing:
        request = session.Request(
            _with(experiment, methods=missing), path, folder, backend=os.environ.get("METHODS_BACKEND", "local")
        )
        made = asyncio.run(session.run_experiment(request, session.Watch(session.quiet)))
        known |= dict(zip((str(method["name"]) for method in missing), made, strict=True))
    return [known[str(method["name"])] for method in experiment.methods]


def _facts(folder: Path) -> RunFacts:
    return sort(read(folder / "records.jsonl"))


def _show(summaries: Sequence[dict[str, Any]], errors: Sequence[SimError | None]) -> None:
    first = summaries[0]
    print(
        f"  target {first['target_accuracy']:.0%}, dilation {first['dilation']:.3g}, limits by {first['enforcement']}"
    )
    print(
        "  | method | rounds | s to target | best | round, s | gap, s | idle | MB up/down | sim. error, median | p90 |"
    )
    print("  |---|---|---|---|---|---|---|---|---|---|")
    for summary, error in zip(summaries, errors, strict=True):
        rounds, seconds = (quantity(name, summary, None) for name in ("rounds_to_target", "time_to_target_s"))
        cells = [
            summary["method"],
            f"{rounds:.0f}" if rounds else f"not in {summary['rounds']}",
            f"{seconds:.2f}" if seconds else "–",
            f"{summary['best_accuracy']:.1%}",
            _or_dash(summary["round_s_median"], "{:.2f}"),
            _or_dash(summary["straggler_gap_s"], "{:.2f}"),
            _or_dash(summary["idle_share_mean"], "{:.0%}"),
            f"{summary['bytes_up_total'] / 1e6:.2f}/{summary['bytes_down_total'] / 1e6:.2f}",
            _or_dash(error and error.median, "{:.1%}"),
            _or_dash(error and error.p90, "{:.1%}"),
        ]
        print(f"  | {' | '.join(cells)} |", flush=True)
    known = sorted(error.median for error in errors if error is not None)
    held = sum(error <= LIMIT for error in known)
    print(f"  simulator: median error of a round at most {LIMIT:.0%} for {held} of {len(known)} methods")


def _or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)
