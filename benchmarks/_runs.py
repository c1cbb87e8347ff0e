"""Real runs of the benchmarks: the fleet of an experiment file, or five small devices."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from orchestrator.calibration.calibrate import Calibration
from orchestrator.experiment import Experiment, Training
from orchestrator.fleet.control.controller import FleetController
from orchestrator.fleet.spec.profile import FleetSpec, load_fleet
from orchestrator.runs import session
from orchestrator.runs.data import Prepared, prepare_data
from orchestrator.runs.feasibility import experiment_fleet


class Opened(NamedTuple):
    controller: FleetController
    data: Prepared
    calibration: Calibration


@contextlib.asynccontextmanager
async def opened(experiment: Experiment, path: Path, backend: str) -> AsyncIterator[Opened]:
    """The calibrated fleet of an experiment that was read from `path`."""
    spec = experiment_fleet(experiment, path)
    profiles = {device.name: device.profile.name for device in spec.devices}
    with tempfile.TemporaryDirectory() as shards:
        data = prepare_data(experiment, list(profiles), Path(shards), profiles)
        opening = session.standing_fleet(
            spec,
            backend=backend,
            dilation=experiment.dilation,
            shards=data.shards,
            heartbeat_s=experiment.training.heartbeat_s,
            grain=experiment.grain,
        )
        async with opening as controller:
            yield Opened(controller, data, await session.calibrate_fleet(controller, False, session.quiet))


class Small(NamedTuple):
    """A run of DTFL at tier 2 with resnet-tiny on five small devices."""

    spec: FleetSpec
    data: Prepared
    request: session.Request


def small_run(folder: Path, name: str, rounds: int, cpus: float, devices: int = 5) -> Small:
    """Writes the fleet's files into `folder`; the run's folder is to be in `folder`/runs."""
    (folder / "fifth.yaml").write_text(
        f"name: fifth\ncpus: {cpus}\nuplink_mbit_s: 100\ndownlink_mbit_s: 100\nmemory_mib: 1024\n"
    )
    (folder / "fleet.yaml").write_text(
        f"name: five\nbackend: local\ndevices: [{{profile: fifth.yaml, count: {devices}}}]\n"
    )
    experiment = Experiment(
        name=name,
        fleet="fleet.yaml",
        model={"name": "resnet-tiny"},
        methods=[{"name": "dtfl", "tier": 2}],
        training=msgspec.convert({"rounds": rounds, "batch_size": 32, "max_batches": 2}, Training),
    )
    spec = load_fleet(folder / "fleet.yaml")
    data = prepare_data(experiment, [device.name for device in spec.devices], folder)
    return Small(spec, data, session.Request(experiment, folder / "experiment.yaml", folder / "runs"))


def run(
    folder: Path, name: str, speed: str, *options: str, before: Sequence[str] = (), environment: Mapping[str, str] = {}
) -> list[Path]:
    """The folders of the runs of `folder`/experiment.yaml, made in `folder`/`name` by a command of its own.

    Args:
        before: what starts the command, such as taskset.
        environment: added to ours.
    """
    place = folder / name
    place.mkdir(exist_ok=True)
    wanted = ("run", str(folder / "experiment.yaml"), "--speed", speed, "--quiet", *options)
    edgebed(place, *wanted, before=before, environment=environment)
    return sorted(each.parent for each in place.glob("runs/*/records.jsonl"))


def edgebed(folder: Path, *arguments: str, before: Sequence[str] = (), environment: Mapping[str, str] = {}) -> None:
    command = [*before, str(Path(sys.executable).parent / "edgebed"), *arguments]
    variables = {**os.environ, **environment}
    done = subprocess.run(command, cwd=folder, env=variables, text=True, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"edgebed {' '.join(arguments)}: {done.stderr}{done.stdout}")
