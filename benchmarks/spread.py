"""What the spread of a reference's pieces does to the time of a round: the demo without and with `spread: true`,
simulated and real.

Real rounds alternate between the methods. The first round is left out. Without spread a simulated round always takes
the same, so what a real one varies by is of links, queues and the orchestrator.

Environment: SPREAD_ROUNDS (12), SPREAD_REAL (no: only simulated), SPREAD_FOLDER (runs/spread; what is there is not done
again).
"""

from __future__ import annotations

import os
from pathlib import Path
from statistics import fmean, stdev

from benchmarks._figures import figure, percentile, skip
from benchmarks._paths import EXPERIMENTS
from benchmarks._runs import edgebed
from orchestrator.records.account import load_summary


def main() -> None:
    folder = Path(os.environ.get("SPREAD_FOLDER", "runs/spread")).resolve()
    real = os.environ.get("SPREAD_REAL") != "no" and os.geteuid() == 0
    if not real:
        skip("real rounds: needs root, and SPREAD_REAL other than no")
    for command in ("simulate", "run") if real else ("simulate",):
        without, varied = (rounds(folder, command, spread) for spread in ("false", "true"))
        for method, steady in without.items():
            for name, times in (("", steady), (", spread", varied[method])):
                note = f"sd {stdev(times):.3f}, p90 {percentile(times, 0.9):.3f} of {len(times)}"
                figure(f"{command}: {method}, a round, s, mean{name}", fmean(times), note=note)
            figure(f"{command}: {method}, with ÷ without spread", fmean(varied[method]) / fmean(steady))


def rounds(folder: Path, command: str, spread: str) -> dict[str, list[float]]:
    """Seconds of the rounds after the first, by method."""
    place = folder / f"{command}-{spread}"
    if not list(place.glob("runs/*/summary.json")):
        place.mkdir(parents=True, exist_ok=True)
        changes = (f"training.rounds={os.environ.get('SPREAD_ROUNDS', '12')}", "training.stop_at_target=false")
        options = [option for change in (*changes, f"spread={spread}") for option in ("--set", change)]
        edgebed(place, command, str(EXPERIMENTS / "demo.yaml"), "--quiet", *options)
    summaries = [load_summary(each.parent) for each in sorted(place.glob("runs/*/summary.json"))]
    return {each.method: [row.round_s for row in each.rounds[1:]] for each in summaries}
