"""A table of a paper from runs on the throttled fleet. Its runs are read like any other; they make no cells."""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from pathlib import Path

import msgspec

from orchestrator.experiment import Experiment
from orchestrator.fleet.spec.profile import fleet_of
from orchestrator.papers.compute import longest_round_s, with_deadline
from orchestrator.papers.entries import Measured, Selection, about, tables_of, values_of, wanted, wanted_jobs
from orchestrator.papers.tables import Reproduction
from orchestrator.records.account import load_summary
from orchestrator.records.compare.quantities import figures_of
from orchestrator.runs import session
from orchestrator.runs.folder import RunFolder
from orchestrator.runs.request import Notify, Watch
from orchestrator.runs.signals import run_to_end


def measure(
    table: Reproduction,
    path: Path,
    selection: Selection,
    runs: Path,
    *,
    backend: str | None,
    fresh: bool,
    notify: Notify,
) -> Measured:
    """Do every run of the table. A run that ended with the same version of Edgebed and the same profiles is used again,
    unless `fresh`. Raises UsageError, and the errors of a run."""
    at, todo, done = wanted(table, selection), wanted_jobs(table, path, selection), []
    for number, job in enumerate(todo, 1):
        notify(f"{number} of {len(todo)}: {job.row}, {', '.join(job.columns)}, seed {job.seed}")
        experiment = job.experiment
        if job.probe is not None:
            longest = longest_round_s(load_summary(_run(job.probe, path, runs, backend, fresh)))
            experiment = with_deadline(experiment, longest)
            notify(f"deadline {experiment.training.deadline_s:g} s, from the longest round without one")
        done.append((job, figures_of(load_summary(_run(experiment, path, runs, backend, fresh)))))
    values = values_of(table, at, done)
    return Measured(values, tables_of(table, at, values), "measured on the fleet", about(at, todo, simulated=False))


def _run(experiment: Experiment, path: Path, runs: Path, backend: str | None, fresh: bool) -> Path:
    """The folder of the experiment's run: a new one, or an earlier one with the same devices and version."""
    devices = fleet_of(path, experiment.fleet).devices
    key = hashlib.sha256(msgspec.json.encode((version("edgebed"), backend, experiment, devices))).hexdigest()[:12]
    parent = runs / f"{experiment.name}-{key}"
    for folder in [] if fresh else sorted(parent.glob("*/summary.json")):
        if RunFolder(folder.parent).ending() == "finished":
            return folder.parent
    parent.mkdir(parents=True, exist_ok=True)
    request = session.Request(experiment, path.resolve(), parent, backend=backend)
    (folder,) = run_to_end(session.run_experiment(request, Watch()))
    return folder
