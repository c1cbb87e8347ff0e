"""Summary, report and trace of a long run: seconds per 1,000 device-rounds, at two lengths (linear, or not)."""

from __future__ import annotations

import tempfile
import time
from itertools import pairwise
from pathlib import Path

from orchestrator.records.recorder import Recorder
from orchestrator.report import write_results
from tests.synthetic import Speed, Synthetic

DEVICES, LENGTHS = 50, (40, 160)
LIMIT = 1.5
"""Cost of a device-round in the long run ÷ in the short one."""


def main() -> None:
    costs = [_cost(rounds) for rounds in LENGTHS]
    for rounds, (record, results) in zip(LENGTHS, costs, strict=True):
        print(
            f"{rounds} rounds × {DEVICES} devices, ms per device-round: "
            f"record {record:.3f}, summary with report and trace {results:.3f}"
        )
    ratio = sum(costs[1]) / sum(costs[0])
    print(f"growth {ratio:.2f} (limit {LIMIT}): {'ok' if ratio <= LIMIT else 'TOO MUCH'}")


def _cost(rounds: int) -> tuple[float, float]:
    """Milliseconds per device-round to record, and to write all results."""
    fleet = {f"device-{i:03d}": Speed(compute=50 + i) for i in range(DEVICES)}
    records = Synthetic(fleet, rounds, clock_every_round=False, accuracy=0.001).records
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recorder = Recorder(folder / "records.jsonl")
        times = [time.perf_counter()]
        for record in records:
            recorder.record(record)
        recorder.close()
        times.append(time.perf_counter())
        write_results(folder)
        times.append(time.perf_counter())
    a, b = ((later - earlier) * 1e3 / rounds / DEVICES for earlier, later in pairwise(times))
    return a, b
