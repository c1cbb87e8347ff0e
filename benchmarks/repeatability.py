"""Spread of the demo's ratio DTFL ÷ FedAvg over repetitions: interleaved, and one method after the other.

The two kinds alternate, each repetition on a new calibrated fleet. The ratio of a repetition is the geometric mean over
rounds of the same number, without the first: the same for both kinds. What is done is kept in REPEATABILITY_FOLDER, one
JSON file per run, and is not done again, so an interrupted benchmark goes on.

Environment: REPEATABILITY_REPETITIONS (10), REPEATABILITY_MINUTES (120: the least time over which they are spread),
REPEATABILITY_ROUNDS (those of the demo), REPEATABILITY_BACKEND (local), REPEATABILITY_FOLDER (runs/repeatability).
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from math import exp, log
from pathlib import Path
from statistics import fmean, stdev

import msgspec

from benchmarks._figures import figure, no_fleets
from benchmarks._paths import EXPERIMENTS
from edgebed.errors import EdgebedError
from orchestrator.experiment import Experiment, load
from orchestrator.records.account import load_summary
from orchestrator.records.compare.ratios import interval
from orchestrator.runs import session

DEMO = EXPERIMENTS / "demo.yaml"
KINDS = ("interleaved", "one after the other")


class Repetition(msgspec.Struct):
    """One run of the demo."""

    number: int
    kind: str
    at: float  # seconds since 1970 when it began
    rounds: list[float]  # ratios DTFL ÷ FedAvg of rounds with the same number, from the second on
    to_target: float | None  # ratio of the times to target; None where one did not reach it
    round_s: dict[str, float]  # median round of each, for the drift between repetitions

    @property
    def ratio(self) -> float:
        return exp(fmean(map(log, self.rounds)))


def main() -> None:
    backend = os.environ.get("REPEATABILITY_BACKEND", "local")
    if no_fleets(backend):
        return
    folder = Path(os.environ.get("REPEATABILITY_FOLDER", "runs/repeatability"))
    folder.mkdir(parents=True, exist_ok=True)
    repetitions = int(os.environ.get("REPEATABILITY_REPETITIONS", "10"))
    apart_s = 60 * float(os.environ.get("REPEATABILITY_MINUTES", "120")) / repetitions
    for number in range(1, repetitions + 1):
        begun, new = time.monotonic(), False
        for kind in KINDS if number % 2 else reversed(KINDS):
            new |= _do(folder, number, kind, backend)
        if new and number < repetitions:
            time.sleep(max(0.0, begun + apart_s - time.monotonic()))
    _show([msgspec.json.decode(path.read_bytes(), type=Repetition) for path in sorted(folder.glob("*.json"))])


def _do(folder: Path, number: int, kind: str, backend: str) -> bool:
    """Run the demo once, unless it is done. A run that fails is left out, and done when the benchmark is run again."""
    place = folder / f"{number:02d}-{kind.replace(' ', '-')}"
    kept = place.with_suffix(".json")
    if kept.exists():
        return False
    at = time.time()
    request = session.Request(_experiment(kind), DEMO, place, backend=backend)
    try:
        runs = asyncio.run(session.run_experiment(request, session.Watch()))
    except EdgebedError as error:
        print(f"  repetition {number}, {kind}: {error}", file=sys.stderr, flush=True)
        return True
    dtfl, fedavg = (load_summary(run) for run in runs)
    rounds = [a.round_s / b.round_s for a, b in list(zip(dtfl.rounds, fedavg.rounds, strict=False))[1:]]
    times = dtfl.time_to_target_s, fedavg.time_to_target_s
    medians = {each.method: each.round_s_median for each in (dtfl, fedavg)}
    done = Repetition(number, kind, at, rounds, times[0] / times[1] if all(times) else None, medians)
    kept.write_bytes(msgspec.json.encode(done))
    return True


def _experiment(kind: str) -> Experiment:
    demo = load(DEMO)
    rounds = int(os.environ.get("REPEATABILITY_ROUNDS", demo.training.rounds))
    training = msgspec.structs.replace(demo.training, rounds=rounds)
    return msgspec.structs.replace(demo, training=training, interleave=kind == KINDS[0])


def _show(done: Sequence[Repetition]) -> None:
    spreads = {}
    for kind in KINDS:
        own = [each for each in done if each.kind == kind]
        if len(own) < 2:
            print(f"  {kind}: {len(own)} repetitions, too few for a spread", flush=True)
            continue
        note = f"{len(own)} repetitions in {(own[-1].at - own[0].at) / 3600:.1f} h"
        spreads[kind] = _spread(f"{kind}: round", [each.ratio for each in own], note)
        _spread(f"{kind}: time to target", [each.to_target for each in own if each.to_target is not None], "")
        for method in own[0].round_s:
            medians = [each.round_s[method] for each in own]
            figure(f"{kind}: median round of {method}, largest ÷ least", max(medians) / min(medians))
    if len(spreads) == 2 and spreads[KINDS[1]]:
        figure("spread of the round's ratio, interleaved ÷ one after the other", spreads[KINDS[0]] / spreads[KINDS[1]])
    _coverage([each for each in done if each.kind == KINDS[0]])


def _spread(what: str, ratios: Sequence[float], note: str) -> float:
    """Prints the ratio over repetitions; returns its standard deviation on the logarithms."""
    if len(ratios) < 2:
        return 0.0
    logs = [log(ratio) for ratio in ratios]
    figure(f"{what}, DTFL ÷ FedAvg, geometric mean", exp(fmean(logs)), note=note)
    figure(f"{what}, largest ÷ least ratio", max(ratios) / min(ratios))
    figure(f"{what}, standard deviation of the ratio, %", 100 * stdev(logs))
    return stdev(logs)


def _coverage(own: Sequence[Repetition]) -> None:
    """How many repetitions' intervals over their own rounds hold the ratio over all repetitions."""
    if len(own) < 2:
        return
    middle = exp(fmean(log(each.ratio) for each in own))
    ends = [interval(each.rounds)[1:] for each in own]
    held = sum(low is not None and high is not None and low <= middle <= high for low, high in ends)
    figure("interleaved: repetitions whose 95 % interval holds the mean of all", held, note=f"of {len(own)}")
