"""Round time of 100 devices ÷ 10 devices with the same quota each, and what the orchestrator and the broker add to it.

A fleet of each size in turn, the smaller first in every other pair. All quotas fit the host, so D is 1. Every device
trains one batch of FedAvg and waits for all others. If the devices' quotas hold, the median device works for the same
time in both; a round grows by the slowest of more devices, and by what orchestrator and broker do for each. The ratio
that is expected of the latter alone is printed beside the measured one: CPU seconds of both, a round, added to the
smaller fleet's round as if none of them passed while devices work.

Every pair gives one ratio of medians over its rounds; the ratio that is printed is their geometric mean, with its 95 %
interval. What was measured is kept in a file, and a later call goes on: `FLEET_SIZE_FILE` (default: fleet_size.jsonl
in the current folder), `FLEET_SIZE_PAIRS` (5), `FLEET_SIZE_CPUS` (0.012), `FLEET_SIZE_ROUNDS` (8).
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from statistics import median

import msgspec
import psutil

from benchmarks._figures import figure, no_fleets, progress
from benchmarks._runs import HIDDEN, small_request, small_run, write_fleet
from benchmarks.light_agents import Costs
from benchmarks.round_overhead import WORK, overhead_ms
from orchestrator.calibration.calibrate import Calibration
from orchestrator.records.compare.ratios import interval
from orchestrator.records.reader import read
from orchestrator.records.run_index import sort
from orchestrator.records.timeline.timeline import RoundTimeline, timelines
from orchestrator.runs import session
from orchestrator.training.process import TrainerProcess

FEW, MANY = 10, 100


class Rounds(msgspec.Struct):
    """Medians over the rounds of one fleet, without the first: seconds of a round, of the median and of the last
    device's work in it, and of the rest of the round; CPU seconds of orchestrator and broker together."""

    round_s: float
    median_device_s: float
    last_device_s: float
    overhead_s: float
    host_cpu_s: float


class Pair(msgspec.Struct):
    few: Rounds
    many: Rounds


async def measured(devices: int) -> Rounds:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cpus = float(os.environ.get("FLEET_SIZE_CPUS", "0.012"))
        write_fleet(folder, [(cpus, 2)] * devices)
        training = {"rounds": int(os.environ.get("FLEET_SIZE_ROUNDS", "8")), "batch_size": 4, "max_batches": 1}
        spec, data, request = small_run(small_request(folder, training, {"name": "fedavg"}, HIDDEN))
        async with session.standing_fleet(spec, shards=data.shards) as controller, TrainerProcess.started() as trainer:
            assert controller.dilation == 1.0, f"{devices} devices of {cpus} CPU do not fit this host"
            pids = {"orchestrator": os.getpid(), "broker": controller.broker.pid()}
            costs = Costs({name: [psutil.Process(pid)] for name, pid in pids.items()})
            (run,) = await session.run_methods(request, controller, data, Calibration((), True), costs, trainer)
        return summed(list(timelines(sort(read(run / "records.jsonl"))))[1:], costs)


def summed(rounds: list[RoundTimeline], costs: Costs) -> Rounds:
    parts = [device_seconds(each) for each in rounds]
    (_, before), (_, after) = costs.rounds[0], costs.rounds[-1]
    return Rounds(
        round_s=median(_length_s(each) for each in rounds),
        median_device_s=median(median(part) for part in parts),
        last_device_s=median(_length_s(each) - overhead_ms(each) / 1e3 for each in rounds),
        overhead_s=median(overhead_ms(each) / 1e3 for each in rounds),
        host_cpu_s=sum(after[name] - before[name] for name in after) / (len(costs.rounds) - 1),
    )


def _length_s(rounds: RoundTimeline) -> float:
    assert rounds.facts.finished is not None
    return (rounds.facts.finished.at_ns - rounds.facts.start_ns) / 1e9


def device_seconds(rounds: RoundTimeline) -> list[float]:
    """Seconds in which each device worked, sent or received in a round."""
    assert rounds.facts.finished is not None
    span = rounds.facts.start_ns, rounds.facts.finished.at_ns
    totals = [account.totals(*span) for account in rounds.devices.values()]
    return [sum(total.get(name, 0) for name in WORK) / 1e9 for total in totals]


def main() -> None:
    if no_fleets():
        return
    kept = Path(os.environ.get("FLEET_SIZE_FILE", "fleet_size.jsonl"))
    wanted = int(os.environ.get("FLEET_SIZE_PAIRS", "5"))
    pairs = [msgspec.json.decode(line, type=Pair) for line in kept.read_bytes().splitlines()] if kept.exists() else []
    for number in range(len(pairs), wanted):
        over = progress(f"pair {number + 1} of {wanted}")
        order = (FEW, MANY) if number % 2 == 0 else (MANY, FEW)
        got = {size: asyncio.run(measured(size)) for size in order}
        pairs.append(Pair(got[FEW], got[MANY]))
        with kept.open("ab") as file:
            file.write(msgspec.json.encode(pairs[-1]) + b"\n")
        over()
    show(pairs)


def show(pairs: list[Pair]) -> None:
    ratio, low, high = interval([pair.many.round_s / pair.few.round_s for pair in pairs])
    assert ratio is not None
    span = "no interval" if low is None or high is None else f"interval {low:.3f} to {high:.3f}"
    few_s, many_s = (median(getattr(pair, which).round_s for pair in pairs) for which in ("few", "many"))
    figure(
        f"round of {MANY} ÷ {FEW} devices", ratio, note=f"{span}, {len(pairs)} pairs; {many_s:.2f} s and {few_s:.2f} s"
    )
    added = median((pair.few.round_s + pair.many.host_cpu_s - pair.few.host_cpu_s) / pair.few.round_s for pair in pairs)
    figure("  expected if only orchestrator and broker took longer", added)
    for what, words in (
        ("median_device_s", "work of the median device"),
        ("last_device_s", "work of the last device"),
        ("overhead_s", "rest of the round: orchestrator, broker, waiting"),
        ("host_cpu_s", "CPU seconds of orchestrator and broker, a round"),
    ):
        few, many = (median(getattr(getattr(pair, which), what) for pair in pairs) for which in ("few", "many"))
        figure(f"  {words}, ratio", many / few, note=f"{many:.3f} s and {few:.3f} s")
