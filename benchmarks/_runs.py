"""Real runs of the benchmarks: on the fleet of an experiment file, or on small devices."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from orchestrator.calibration.calibrate import Calibration
from orchestrator.experiment import Experiment, Training
from orchestrator.fleet.control.controller import FleetController
from orchestrator.fleet.spec.profile import FleetSpec, load_fleet
from orchestrator.records.reader import read
from orchestrator.records.run_index import RunFacts, sort
from orchestrator.runs import session
from orchestrator.runs.data import Prepared, prepare_data
from orchestrator.runs.feasibility import experiment_fleet

RESNET, HIDDEN = {"name": "resnet-tiny"}, {"name": "fcnn", "hidden": [32]}
"""Models of small runs."""

TIER = {"name": "dtfl", "tier": 2}
TWO_BATCHES = {"batch_size": 32, "max_batches": 2}


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


async def play(experiment: Experiment, path: Path, runs: Path, backend: str) -> list[Path]:
    """The folders, in `runs`, of the runs of an experiment that was read from `path`, on a fleet of their own."""
    async with opened(experiment, path, backend) as fleet:
        request = session.Request(experiment, path, runs, backend=backend)
        return await session.run_methods(request, fleet.controller, fleet.data, fleet.calibration, session.Watch())


async def play_missing(parts: Mapping[Path, Experiment], path: Path, backend: str) -> None:
    """Real runs of what the folders lack of their experiments, which have the same methods and fleet; all runs of a
    method one after the other."""
    one = next(iter(parts.values()))
    missing = [method for method in one.methods if any(method["name"] not in finished(runs) for runs in parts)]
    if not missing:
        return
    async with opened(one, path, backend) as fleet:
        for method in missing:
            for runs, experiment in parts.items():
                runs.mkdir(parents=True, exist_ok=True)
                wanted = msgspec.structs.replace(experiment, methods=[method])
                request = session.Request(wanted, path, runs, backend=backend)
                await session.run_methods(request, fleet.controller, fleet.data, fleet.calibration, session.Watch())


def finished(runs: Path) -> dict[str, Path]:
    """Folders of finished runs, by method."""
    return {facts(each.parent).started.method: each.parent for each in sorted(runs.glob("*/summary.json"))}


def facts(folder: Path) -> RunFacts:
    return sort(read(folder / "records.jsonl"))


class Small(NamedTuple):
    """A run on small devices."""

    spec: FleetSpec
    data: Prepared
    request: session.Request


def write_fleet(folder: Path, devices: Sequence[tuple[float, float]], backend: str = "local") -> Path:
    """Writes `folder`/fleet.yaml: the devices d1, d2, … with these CPUs and Mbit/s, each way."""
    for cpus, rate in set(devices):
        rates = f"uplink_mbit_s: {rate:g}\ndownlink_mbit_s: {rate:g}\nmemory_mib: 1024\n"
        (folder / f"{cpus:g}-{rate:g}.yaml").write_text(f"name: cpu{cpus:g}-at{rate:g}\ncpus: {cpus:g}\n{rates}")
    rows = [f"{{profile: {cpus:g}-{rate:g}.yaml, name: d{i}}}" for i, (cpus, rate) in enumerate(devices, 1)]
    path = folder / "fleet.yaml"
    path.write_text(f"name: few\nbackend: {backend}\ndevices: [{', '.join(rows)}]\n")
    return path


def small_request(
    folder: Path, training: Mapping[str, Any], method: Mapping[str, Any], model: Mapping[str, Any] = RESNET
) -> session.Request:
    """One method on the fleet of `write_fleet`; the run's folder is to be in `folder`/runs."""
    experiment = Experiment(
        name="small",
        fleet="fleet.yaml",
        model=dict(model),
        methods=[dict(method)],
        training=msgspec.convert(training, Training),
    )
    return session.Request(experiment, folder / "experiment.yaml", folder / "runs")


def small_run(request: session.Request) -> Small:
    """What a run needs, with its shards written beside the experiment."""
    folder = request.path.parent
    spec = load_fleet(folder / "fleet.yaml")
    return Small(spec, prepare_data(request.experiment, [device.name for device in spec.devices], folder), request)


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
