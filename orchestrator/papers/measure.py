"""Does the runs for a table of a paper, simulated or on the fleet, and reads the figures from their summaries."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

import msgspec

from edgebed.errors import UsageError
from orchestrator.experiment import Experiment
from orchestrator.fleet.spec.profile import fleet_of
from orchestrator.papers.tables import Column, Job, Reproduction, chosen, jobs
from orchestrator.records.account import load_summary
from orchestrator.records.compare.quantities import quantity
from orchestrator.records.compare.ratios import Cell, cells
from orchestrator.runs import session
from orchestrator.runs.folder import RunFolder
from orchestrator.runs.request import Notify
from orchestrator.runs.signals import run_to_end
from orchestrator.simulation.run import SimulationRequest, simulate


class Measured(msgspec.Struct, frozen=True):
    """The tables by quantity, how they were made, and their scale."""

    tables: dict[str, list[Cell]]
    how: str
    about: str


def measure(
    table: Reproduction,
    path: Path,
    runs: Path,
    *,
    real: bool,
    backend: str | None,
    full: bool,
    fresh: bool,
    seeds: Sequence[int] | None,
    rows: Sequence[str] | None,
    columns: Sequence[str] | None,
    notify: Notify,
) -> Measured:
    """Do every run of the table. A run that already ended with the same version of Edgebed and the same profiles is
    reused, unless `fresh`.

    Raises:
        UsageError: an unknown row or column, or an error of the experiment.
    """
    wanted_rows, wanted_columns = _wanted(table, full, rows, columns)
    todo = [
        job
        for job in jobs(table, path, full=full, seeds=seeds)
        if job.row in wanted_rows and set(job.columns) & set(wanted_columns)
    ]
    values: dict[str, dict[tuple[str, str, int], float | None]] = {name: {} for name in table.quantities}
    for number, job in enumerate(todo, 1):
        notify(f"{number} of {len(todo)}: {job.row}, {', '.join(job.columns)}, seed {job.seed}")
        experiment = job.experiment
        if job.probe is not None:
            longest = longest_round_s(run_once(job.probe, path, runs, real=real, backend=backend, fresh=fresh))
            experiment = with_deadline(experiment, longest)
            notify(f"deadline {experiment.training.deadline_s:g} s, from the longest round without one")
        summary = load_summary(run_once(experiment, path, runs, real=real, backend=backend, fresh=fresh))
        for column in set(job.columns) & set(wanted_columns):
            target = wanted_columns[column].target
            for name, found in values.items():
                found[job.row, column, job.seed] = quantity(name, summary, target)
    labels = list(wanted_columns)
    order = {label: i for i, label in enumerate(table.columns)}
    tables = {
        name: cells(found, wanted_rows, labels, table.baseline, _figures(table, name, order))
        for name, found in values.items()
    }
    how = "measured on the fleet" if real else "simulated"
    return Measured(tables, how, _about(table, todo, real=real, full=full))


def longest_round_s(folder: Path) -> float:
    """Seconds of the longest round of a run."""
    elapsed: list[float] = [row.elapsed_s for row in load_summary(folder).rounds]
    return max(after - before for before, after in pairwise([0.0, *elapsed]))


def with_deadline(experiment: Experiment, longest_s: float) -> Experiment:
    """The experiment with a deadline that a device of `longest_s` seconds just meets: a little longer, like 26.5 s for
    26.4 s in FedPMT's paper. It is rounded to five digits, so that equal measurements give equal experiments."""
    deadline_s = float(f"{longest_s * 26.5 / 26.4:.5g}")
    training = msgspec.structs.replace(experiment.training, deadline_s=deadline_s)
    return msgspec.structs.replace(experiment, training=training)


def _about(table: Reproduction, todo: Sequence[Job], *, real: bool, full: bool) -> str:
    """What was run, in words: the scale, and the source of the times and bytes of a simulation."""
    text = "the paper's own." if full else " ".join(table.scale.about.split())
    as_if = todo[0].experiment.simulation.as_if if todo and not real else None
    if as_if is None:
        return text
    model = as_if.model.get("name")
    return (
        f"{text} Seconds and bytes are those of {model} on {as_if.train_samples} samples in batches of "
        f"{as_if.batch_size} (simulation.as_if); accuracies and rounds are those of the model that was trained."
    )


def _wanted(
    table: Reproduction, full: bool, rows: Sequence[str] | None, columns: Sequence[str] | None
) -> tuple[list[str], dict[str, Column]]:
    all_rows, all_columns = chosen(table, full=full)
    unknown = [row for row in rows or () if row not in all_rows] + [c for c in columns or () if c not in all_columns]
    if unknown:
        raise UsageError(
            f"the table has no row or column {', '.join(map(repr, unknown))}",
            hint=f"rows are {', '.join(all_rows)}; columns are {', '.join(all_columns)}",
        )
    kept = [row for row in all_rows if not rows or row in rows or row == table.baseline]
    return kept, {label: column for label, column in all_columns.items() if not columns or label in columns}


def _figures(table: Reproduction, name: str, order: dict[str, int]) -> dict[str, dict[str, float | None]]:
    return {
        row: {label: printed[i] for label, i in order.items()} for row, printed in table.figures.get(name, {}).items()
    }


def run_once(
    experiment: Experiment,
    path: Path,
    runs: Path,
    *,
    real: bool = False,
    backend: str | None = None,
    fresh: bool = False,
) -> Path:
    """The folder of the experiment's run: a new one, or an earlier one with the same devices and version."""
    how = f"{'real' if real else 'simulated'}/{backend or ''}"
    devices = fleet_of(path, experiment.fleet).devices
    key = hashlib.sha256(msgspec.json.encode((version("edgebed"), how, experiment, devices))).hexdigest()[:12]
    parent = runs / f"{experiment.name}-{key}"
    for folder in [] if fresh else sorted(parent.glob("*/summary.json")):
        if RunFolder(folder.parent).ending() == "finished":
            return folder.parent
    parent.mkdir(parents=True, exist_ok=True)
    quiet = session.Watch(session.quiet)
    if real:
        request = session.Request(experiment, path.resolve(), parent, backend=backend)
        (folder,) = run_to_end(session.run_experiment(request, quiet))
    else:
        (folder,) = simulate(SimulationRequest(experiment, path.resolve(), parent), quiet)
    return folder
