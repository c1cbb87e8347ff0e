"""All methods on one fleet that is held to a reference, and the simulator's error for each, with the same reference.

The last column is the error of a method's run with another seed, taken as the prediction. (`simulator_error` prints
the error of every part of a round.)

Environment: METHODS_EXPERIMENT (methods | methods-mnist), METHODS_BACKEND (local), METHODS_ROUNDS (those of the file),
METHODS_REFERENCE (x86-avx512), METHODS_OTHER (6: rounds of the run with another seed),
METHODS_FOLDER (keeps the runs there, and takes real runs that are there already instead of new ones).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import msgspec

from benchmarks._figures import figure, kept_folder, no_fleets
from benchmarks._paths import EXPERIMENTS
from benchmarks._runs import facts, finished, play_missing
from orchestrator.experiment import Experiment, load
from orchestrator.records.account import load_summary
from orchestrator.records.compare.quantities import figures_of, quantity
from orchestrator.records.compare.sim_error import SimError, sim_error
from orchestrator.records.summary import Summary
from orchestrator.runs import session
from orchestrator.simulation.run import SimulationRequest, simulate

LIMIT = 0.10
COLUMNS = (
    "method", "rounds", "s to target", "best", "round, s", "gap, s", "idle", "MB up/down",
    "sim. error, median", "p90", "another real run's",
)  # fmt: skip


def main() -> None:
    if no_fleets(os.environ.get("METHODS_BACKEND", "local")):
        return
    with kept_folder("METHODS_FOLDER") as folder:
        measure(folder)


def measure(folder: Path) -> None:
    path = EXPERIMENTS / f"{os.environ.get('METHODS_EXPERIMENT', 'methods')}.yaml"
    experiment = load(path)
    speed = f"reference {os.environ.get('METHODS_REFERENCE', 'x86-avx512')}"
    experiment = msgspec.structs.replace(experiment, speed=speed)
    experiment = _with(experiment, rounds=int(os.environ.get("METHODS_ROUNDS", experiment.training.rounds)))
    again = _with(experiment, seed=2, rounds=int(os.environ.get("METHODS_OTHER", "6")), stop_at_target=False)
    parts = {folder / "other": again, folder / "real": experiment}
    asyncio.run(play_missing(parts, path, os.environ.get("METHODS_BACKEND", "local")))
    others, real = (finished(part) for part in parts)
    request = SimulationRequest(experiment, path, folder / "simulated", built=True)
    simulated = simulate(request, session.Watch())
    rows = []
    for method, run in zip(experiment.methods, simulated, strict=True):
        name = str(method["name"])
        simulation, other = (sim_error(facts(each), facts(real[name])) for each in (run, others[name]))
        rows.append(Row(load_summary(real[name]), simulation, other))
    _show(rows)


def _with(experiment: Experiment, **training: Any) -> Experiment:
    return msgspec.structs.replace(experiment, training=msgspec.structs.replace(experiment.training, **training))


class Row(NamedTuple):
    """A real run, and how far from it a simulation is, and another real run."""

    summary: Summary
    simulation: SimError | None
    other: SimError | None


def _show(rows: Sequence[Row]) -> None:
    first = rows[0].summary
    print(f"  target {first.target_accuracy:.0%}, dilation {first.dilation:.3g}, limits by {first.enforcement}")
    print(f"  | {' | '.join(COLUMNS)} |\n  |{'---|' * len(COLUMNS)}")
    for summary, error, other in rows:
        rounds, seconds = (
            quantity(name, figures_of(summary), None) for name in ("rounds_to_target", "time_to_target_s")
        )
        cells = [
            summary.method,
            f"{rounds:.0f}" if rounds else f"not in {len(summary.rounds)}",
            f"{seconds:.2f}" if seconds else "–",
            f"{summary.best_accuracy:.1%}",
            _or_dash(summary.round_s_median, "{:.2f}"),
            _or_dash(summary.straggler_gap_s, "{:.2f}"),
            _or_dash(summary.idle_share_mean, "{:.0%}"),
            f"{summary.bytes_up_total / 1e6:.2f}/{summary.bytes_down_total / 1e6:.2f}",
            f"{error.median:.1%}" if error else "–",
            f"{error.p90:.1%}" if error else "–",
            f"{other.median:.1%}" if other else "–",
        ]
        print(f"  | {' | '.join(cells)} |", flush=True)
    known = [row.simulation for row in rows if row.simulation]
    held = sum(error.median <= LIMIT for error in known)
    print(f"  simulator: median error of a round at most {LIMIT:.0%} for {held} of {len(known)} methods")
    for what, errors in (("simulated", known), ("another real run", [row.other for row in rows if row.other])):
        shares = [abs(each.error) for error in errors for each in error.rounds]
        figure(f"median error over the rounds of all methods: {what}", median(shares), most=LIMIT)


def _or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)
