"""Reported seconds at 2D ÷ those at D, with a dilated server, for FedAvg, SplitFed and DTFL: within 5 % of 1.

Five unlike devices and a server of one CPU, first at D, then at 2D, or the other way round, in turn. Every repetition
gives one ratio of the medians of its rounds for each method; the ratio that is printed is their geometric mean, with
its 95 % interval (Student's t over the logarithms). What was measured is kept in a file, and a later call goes on:
`EDGEBED_DILATION_FILE` (default: dilation.jsonl in the current folder), `EDGEBED_REPETITIONS` (default 5).
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from statistics import median

import msgspec

from benchmarks._figures import figure, progress, skip
from orchestrator.calibration.calibrate import Calibration
from orchestrator.experiment import Experiment, Server, Training
from orchestrator.fleet.host.cores import usable_cores
from orchestrator.fleet.spec.capacity import needed_dilation
from orchestrator.fleet.spec.profile import FleetSpec, load_fleet
from orchestrator.records.account import load_summary
from orchestrator.records.compare.ratios import interval
from orchestrator.runs import session
from orchestrator.runs.data import prepare_data

METHODS: list[dict[str, object]] = [{"name": "fedavg"}, {"name": "splitfed"}, {"name": "dtfl", "tier": 2}]
CPUS, SERVER_CPUS, ROUNDS, WARM_UP = (1.0, 0.8, 0.6, 0.5, 0.4), 1.0, 6, 1
LIMIT = 0.05


class Pair(msgspec.Struct):
    """One repetition: medians of the reported seconds of a round by method, at D and at 2D."""

    dilation: float
    at_once_s: dict[str, float]
    at_twice_s: dict[str, float]


def write_fleet(folder: Path) -> FleetSpec:
    for cpus in CPUS:
        (folder / f"c{cpus}.yaml").write_text(
            f"name: c{cpus}\ncpus: {cpus}\nuplink_mbit_s: 40\ndownlink_mbit_s: 40\nmemory_mib: 1024\n"
        )
    devices = ", ".join(f"{{profile: c{cpus}.yaml}}" for cpus in CPUS)
    (folder / "fleet.yaml").write_text(f"name: five\nbackend: local\ndevices: [{devices}]\n")
    return msgspec.structs.replace(load_fleet(folder / "fleet.yaml"), server_cpus=SERVER_CPUS)


async def measured(dilation: float) -> dict[str, float]:
    """Median reported seconds of a round, by method, on a fleet of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spec = write_fleet(folder)
        experiment = Experiment(
            name="dilation",
            fleet="fleet.yaml",
            model={"name": "resnet-tiny"},
            methods=METHODS,
            server=Server(cpus=SERVER_CPUS),
            training=msgspec.convert({"rounds": ROUNDS, "batch_size": 32, "max_batches": 4}, Training),
            dilation=dilation,
        )
        data = prepare_data(experiment, [device.name for device in spec.devices], folder)
        request = session.Request(experiment, folder / "experiment.yaml", folder / "runs")
        async with session.standing_fleet(spec, dilation=dilation, shards=data.shards) as controller:
            watch = session.Watch(session.quiet)
            runs = await session.run_methods(request, controller, data, Calibration((), True), watch)
        return {str(options["name"]): _seconds(run) for options, run in zip(METHODS, runs, strict=True)}


def _seconds(run: Path) -> float:
    """The median of the reported seconds of the rounds after the first, which loads what the others have."""
    rounds = [row.round_s for row in load_summary(run).rounds]
    return median(rounds[WARM_UP:])


def main() -> None:
    if os.geteuid() != 0:
        skip("needs root: network namespaces and cgroups")
        return
    kept = Path(os.environ.get("EDGEBED_DILATION_FILE", "dilation.jsonl"))
    wanted = int(os.environ.get("EDGEBED_REPETITIONS", "5"))
    pairs = [msgspec.json.decode(line, type=Pair) for line in kept.read_bytes().splitlines()] if kept.exists() else []
    with tempfile.TemporaryDirectory() as folder:
        dilation = max(1.5, needed_dilation(write_fleet(Path(folder)), usable_cores()))
    for number in range(len(pairs), wanted):
        over = progress(f"repetition {number + 1} of {wanted}")
        order = (1, 2) if number % 2 == 0 else (2, 1)
        got = {factor: asyncio.run(measured(factor * dilation)) for factor in order}
        pairs.append(Pair(dilation, got[1], got[2]))
        with kept.open("ab") as file:
            file.write(msgspec.json.encode(pairs[-1]) + b"\n")
        over()
    for name in (str(options["name"]) for options in METHODS):
        ratio, low, high = interval([pair.at_twice_s[name] / pair.at_once_s[name] for pair in pairs])
        seconds = median(pair.at_once_s[name] for pair in pairs)
        span = "no interval" if low is None or high is None else f"interval {low:.3f} to {high:.3f}"
        note = f"{span}, {len(pairs)} pairs, D {dilation:.3g}, {seconds:.2f} s at D"
        assert ratio is not None
        figure(
            f"{name}: seconds at 2D ÷ at D, off from 1", abs(ratio - 1), most=LIMIT, note=f"ratio {ratio:.3f}; {note}"
        )
