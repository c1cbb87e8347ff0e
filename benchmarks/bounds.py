"""What-ifs held against what happens when the bound is really made twice as fast: within 10 % of the round.

Four worlds of two devices, each bound by something else: a device's CPU, its uplink, the server, the orchestrator. In
each, a fleet as it is and one with the bound twice as fast take turns, `PAIRS` times; the rounds of the first give the
prediction. Merges are lengthened to a fixed time, so that half of it is known; the server has CPUs of its own.

Environment: BOUNDS_CASES (those below, by commas), BOUNDS_FOLDER (keeps the runs there; those that are there already
are not run again), BOUNDS_PAIRS (2).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from unittest import mock

import msgspec
import yaml

from benchmarks._figures import figure, kept_folder, no_fleets
from edgebed.methods.base import Contribution
from edgebed.methods.fedavg import FedAvg
from edgebed.models.staged import Weights
from orchestrator.calibration.calibrate import Calibration
from orchestrator.experiment import Experiment, Training
from orchestrator.fleet.spec.profile import load_fleet
from orchestrator.records.account import summarise
from orchestrator.records.reader import read
from orchestrator.runs import session
from orchestrator.runs.data import prepare_data

LIMIT = 0.10
MERGE_S = 2.0
"""What a merge takes where it is lengthened."""

WEAK = {"cpus": 0.3, "uplink_mbit_s": 50.0, "downlink_mbit_s": 50, "memory_mib": 1024}
TRAINING = {"rounds": 5, "batch_size": 32, "max_batches": 3, "stop_at_target": False}


class Case(NamedTuple):
    """A world: its method, the limits of its slow device, and which what-if is asked."""

    method: dict[str, Any]
    weak: dict[str, float]
    what: str
    faster: dict[str, float] | None = None
    server_cpus: float | None = None
    merge_s: float = 0.0

    @property
    def whose(self) -> str:
        return "weak-1" if self.faster else ""


CASES = {
    "cpu": Case({"name": "fedavg"}, WEAK | {"cpus": 0.1}, "cpu", {"cpus": 0.2}),
    "uplink": Case({"name": "fedavg"}, WEAK | {"uplink_mbit_s": 1.0}, "uplink", {"uplink_mbit_s": 2.0}),
    "server": Case({"name": "splitfed", "cut": 2}, WEAK, "server", server_cpus=0.1),
    "host": Case({"name": "fedavg"}, WEAK, "host", merge_s=MERGE_S),
}


@contextlib.contextmanager
def lengthened(merge_s: float) -> Iterator[None]:
    """Every merge takes so long at least."""
    merge = FedAvg.merge

    def slow_merge(method: FedAvg, weights: Weights, contributions: Sequence[Contribution]) -> Weights:
        with _at_least(merge_s):
            return merge(method, weights, contributions)

    with mock.patch.object(FedAvg, "merge", slow_merge):
        yield


@contextlib.contextmanager
def _at_least(seconds: float) -> Iterator[None]:
    end = time.monotonic() + seconds
    yield
    time.sleep(max(0.0, end - time.monotonic()))


def write_fleet(folder: Path, case: Case, faster: bool) -> None:
    weak = {"name": "weak", **case.weak, **((case.faster if faster else None) or {})}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "weak.yaml").write_text(yaml.safe_dump(weak))
    (folder / "strong.yaml").write_text(yaml.safe_dump({"name": "strong", **WEAK, "cpus": 0.6}))
    devices = [{"profile": "weak.yaml"}, {"profile": "strong.yaml"}]
    (folder / "fleet.yaml").write_text(yaml.safe_dump({"name": "two", "backend": "local", "devices": devices}))


async def one_run(folder: Path, case: Case, faster: bool) -> Path:
    """A fleet of its own, from the files of `write_fleet`; returns the run's folder."""
    experiment = Experiment(
        name="bounds",
        fleet="fleet.yaml",
        model={"name": "resnet-tiny"},
        methods=[case.method],
        training=msgspec.convert(TRAINING, Training),
    )
    speed = 0.5 if faster else 1.0
    server_cpus = None if case.server_cpus is None else case.server_cpus / speed
    spec = msgspec.structs.replace(load_fleet(folder / "fleet.yaml"), server_cpus=server_cpus)
    data = prepare_data(experiment, [device.name for device in spec.devices], folder)
    request = session.Request(experiment, folder / "experiment.yaml", folder / "runs")
    async with session.standing_fleet(spec, shards=data.shards) as controller:
        with lengthened(case.merge_s * speed):
            watch = session.Watch()
            (run,) = await session.run_methods(request, controller, data, Calibration((), True), watch)
    return run


def summary_of(folder: Path, case: Case, faster: bool) -> dict[str, Any]:
    """Of the run that is in the folder, or of a new one."""
    there = sorted(folder.glob("runs/*/summary.json"))
    if not there:
        write_fleet(folder, case, faster)
    run = there[0].parent if there else asyncio.run(one_run(folder, case, faster))
    return summarise(read(run / "records.jsonl")).as_dict()


def measure(folder: Path, name: str, pairs: int) -> None:
    case = CASES[name]
    predicted, measured, before, shares, texts = [], [], [], [], []
    for pair in range(pairs):
        was = summary_of(folder / f"{name}-{pair}-before", case, False)
        now = summary_of(folder / f"{name}-{pair}-faster", case, True)
        savings = {(row["what"], row["whose"]): row["saved_s"] for row in was["what_if"]["savings"]}
        saved = savings.get((case.what, case.whose), 0.0)
        before.append(median(was["round_s"]))
        predicted.append(before[-1] * (1 - saved / was["what_if"]["rounds_s"]))
        measured.append(median(now["round_s"]))
        parts = was["bound_by"]["parts"]
        fits = {case.what, "turn"} if case.what == "server" else {case.what}
        shares.append(sum(row["share"] for row in parts if row["what"] in fits))
        texts.append(was["bound_by"]["text"])
    figure(f"{name}: share of the path", median(shares), least=0.3, note=texts[0])
    error = median(predicted) / median(measured) - 1
    note = f"{median(before):.2f} s; twice as fast: predicted {median(predicted):.2f}, measured {median(measured):.2f}"
    figure(f"{name}: predicted ÷ measured round, off by", abs(error), most=LIMIT, note=note)


def main() -> None:
    if no_fleets():
        return
    names = os.environ.get("BOUNDS_CASES", ",".join(CASES)).split(",")
    with kept_folder("BOUNDS_FOLDER") as folder:
        for name in names:
            measure(folder, name, int(os.environ.get("BOUNDS_PAIRS", "2")))
