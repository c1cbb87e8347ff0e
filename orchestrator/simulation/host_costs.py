"""The costs of this host, measured once by a short real run: what `simulate` takes where there is no calibration.

They are a calibration without what belongs to one model: the reference laws and the profiled cuts. What stays is what
layers cost by kind and width, so that the work of any model can be added up; how devices and server halves differ from
these sums; the agent's CPU seconds per task, upload, reply and byte; the latency of links; the server's turns; and the
seconds of the orchestrator's own work.
"""

from __future__ import annotations

import platform
from pathlib import Path

import msgspec

from orchestrator.experiment import load
from orchestrator.files.host_folder import host_folder
from orchestrator.files.output import try_folder
from orchestrator.files.shipped import shipped
from orchestrator.fleet.ownership import OwnedFolder
from orchestrator.fleet.spec.profile import fleet_of
from orchestrator.records.reader import read
from orchestrator.records.run_index import sort
from orchestrator.references.layer_profile import measure
from orchestrator.references.work_laws import WorkLaws
from orchestrator.runs.data import prepare_data
from orchestrator.runs.request import Request
from orchestrator.runs.run import start_model
from orchestrator.simulation.calibration import Calibration, load_calibration, save_calibration
from orchestrator.simulation.fitting import fit

EXPERIMENT = shipped("profiles") / "experiments" / "host-costs.yaml"
"""Some rounds of methods whose tasks differ in uploads, replies, bytes and width."""


def host_costs_file() -> Path:
    """Where the costs of this host are kept."""
    return host_folder() / "host-costs.yaml"


def request(runs: Path, backend: str | None, rounds: int) -> Request:
    """The run that measures. `runs`: a folder for the runs' folders."""
    return Request(load(EXPERIMENT, [f"training.rounds={rounds}"]), EXPERIMENT, runs, backend=backend)


def from_runs(folders: list[Path]) -> Calibration:
    """The costs of this host from the folders of that run. The reference is measured now."""
    experiment = load(EXPERIMENT)
    with OwnedFolder("edgebed-data-") as shards:
        devices = {device.name: device.profile.name for device in fleet_of(EXPERIMENT, experiment.fleet).devices}
        prepared = prepare_data(experiment, list(devices), shards, devices, EXPERIMENT)
    model = start_model(experiment, prepared, EXPERIMENT)
    reference = WorkLaws(model, prepared.sample(experiment.training.batch_size), layers=measure())
    made = fit([sort(read(folder / "records.jsonl")) for folder in folders], reference, by_bytes=True)
    profiles = {name: msgspec.structs.replace(costs, work={}) for name, costs in made.profiles.items()}
    kept = {"host": platform.node() or "unnamed", "profiles": profiles}
    return msgspec.structs.replace(made, **kept, cuts={}, device={}, server={})


def keep(costs: Calibration) -> Path:
    """Write the costs to the host's folder; returns the file. Raises FileError."""
    path = host_costs_file()
    try_folder(path.parent)
    save_calibration(costs, path)
    return path


def known() -> Calibration | None:
    """The costs of this host; None if they were not measured. Raises UsageError for a file that cannot be read."""
    path = host_costs_file()
    return load_calibration(path) if path.is_file() else None
