"""Seconds of a round that are neither compute nor transfer, with five devices: at most 100 ms at the 95th percentile.

A round lasts as long as its last device: what remains of it after the time in which that device worked, sent, received
or had its server half working is the orchestrator's and the protocol's.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from benchmarks._figures import figure, no_fleets, percentile
from benchmarks._runs import TIER, TWO_BATCHES, small_request, small_run, write_fleet
from orchestrator.calibration.calibrate import Calibration
from orchestrator.records.reader import read
from orchestrator.records.run_index import sort
from orchestrator.records.timeline.timeline import RoundTimeline, timelines
from orchestrator.runs import session

ROUNDS, DEVICES = 40, 5
WORK = ("download", "decode", "compute", "encode", "blocked", "reply_wait", "upload_tail", "server_wait")


async def one_run(folder: Path) -> list[RoundTimeline]:
    write_fleet(folder, [(0.3, 100)] * DEVICES)
    small = small_run(small_request(folder, {"rounds": ROUNDS, **TWO_BATCHES}, TIER))
    async with session.standing_fleet(small.spec, shards=small.data.shards) as controller:
        watch = session.Watch()
        (run,) = await session.run_methods(small.request, controller, small.data, Calibration((), True), watch)
    return list(timelines(sort(read(run / "records.jsonl"))))


def overhead_ms(rounds: RoundTimeline) -> float:
    """Milliseconds of one round in which its last device had nothing to do."""
    finished = rounds.facts.finished
    assert finished is not None
    last = max(rounds.facts.done.values(), key=lambda done: done.at_ns).device
    start, end = rounds.facts.start_ns, finished.at_ns
    totals = rounds.devices[last].totals(end)
    return (end - start - sum(totals.get(name, 0) for name in WORK)) / 1e6


def main() -> None:
    if no_fleets():
        return
    with tempfile.TemporaryDirectory() as folder:
        rounds = asyncio.run(one_run(Path(folder)))
    values = [overhead_ms(each) for each in rounds[1:]]
    figure("round overhead, median, ms", percentile(values, 0.5))
    figure("round overhead, 95th percentile, ms", percentile(values, 0.95), most=100)
