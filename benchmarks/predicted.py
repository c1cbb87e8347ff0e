"""How well a method's scheduler predicts: seconds predicted ÷ seconds taken, of every assignment of real runs.

1 is right; below 1 the scheduler took the device for quicker than it was. The first round, planned from declared
profiles, is told apart. "the plan" compares the slowest prediction of each round with the round's slowest device.

Runs under `quota` and under `pacing` alternate, so that a host that drifts changes both alike. On small networks a
batch fits into one period's quota: under `quota` a device then takes almost no time for some batches and a whole period
for others, which no scheduler can predict.

Environment: PREDICTED_EXPERIMENT (methods), PREDICTED_METHOD (dtfl), PREDICTED_ROUNDS (10), PREDICTED_GRAINS
(quota,pacing), PREDICTED_REPEATS (2: of each grain, with another seed each), PREDICTED_SEED (that of the file),
PREDICTED_DILATION (that of the file: a factor of 4, say, makes devices slow beside a server that shares a host with
others), PREDICTED_BACKEND (local), PREDICTED_FOLDER (keeps the runs there).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import mean, median
from typing import Any, cast

import msgspec

from benchmarks._figures import figure, kept_folder, no_fleets, percentile
from benchmarks._paths import EXPERIMENTS
from benchmarks._runs import play
from orchestrator.experiment import Experiment, Grain, load
from orchestrator.records.account import load_summary

Pair = tuple[float, float]
"""Seconds predicted, seconds taken."""


def main() -> None:
    if no_fleets(os.environ.get("PREDICTED_BACKEND", "local")):
        return
    path = EXPERIMENTS / f"{os.environ.get('PREDICTED_EXPERIMENT', 'methods')}.yaml"
    grains = os.environ.get("PREDICTED_GRAINS", "quota,pacing").split(",")
    off: dict[str, list[float]] = {grain: [] for grain in grains}
    with kept_folder("PREDICTED_FOLDER") as folder:
        for repeat in range(int(os.environ.get("PREDICTED_REPEATS", "2"))):
            for grain in grains:
                experiment = _wanted(load(path), cast(Grain, grain), repeat)
                (run,) = asyncio.run(play(experiment, path, folder, os.environ.get("PREDICTED_BACKEND", "local")))
                print(f"  {grain}, run {repeat + 1}:")
                off[grain] += _show(load_summary(run).as_dict())
    if "quota" in off and "pacing" in off:
        errors = (median(off[grain]) - 1 for grain in ("quota", "pacing"))
        figure("error of a prediction, quota ÷ pacing", next(errors) / next(errors), least=1.0)


def _wanted(experiment: Experiment, grain: Grain, repeat: int) -> Experiment:
    name = os.environ.get("PREDICTED_METHOD", "dtfl")
    method = next((each for each in experiment.methods if each["name"] == name), {"name": name})
    training = msgspec.structs.replace(
        experiment.training,
        rounds=int(os.environ.get("PREDICTED_ROUNDS", "10")),
        seed=int(os.environ.get("PREDICTED_SEED", experiment.training.seed)) + repeat,
        stop_at_target=False,
    )
    dilation = os.environ.get("PREDICTED_DILATION")
    return msgspec.structs.replace(
        experiment,
        methods=[method],
        training=training,
        grain=grain,
        dilation=float(dilation) if dilation else experiment.dilation,
    )


def _show(summary: Mapping[str, Any]) -> list[float]:
    """Returns the factors by which predictions are off, sorted."""
    pairs = {name: _pairs(summary["predicted_s"][name], summary["actual_s"][name]) for name in summary["predicted_s"]}
    for name, each in pairs.items():
        _line(name, each, f"cuts {_counted(summary['cut'][name][1:])}")
    every = [pair for each in pairs.values() for pair in each]
    _line("all assignments", every, "")
    moved = [a != b for cuts in summary["cut"].values() for a, b in pairwise(cuts[1:])]
    figure("share of assignments with another cut than the round before", mean(moved))
    rounds = [[each[number] for each in pairs.values()] for number in range(min(map(len, pairs.values())))]
    _line("the plan", [_slowest(each) for each in rounds], "")
    first = [(p[0], t[0]) for p, t in zip(summary["predicted_s"].values(), summary["actual_s"].values(), strict=True)]
    if known := [(p, t) for p, t in first if p is not None and t is not None]:
        predicted, taken = _slowest(known)
        figure(
            "the first round's plan: predicted ÷ taken", predicted / taken, note=f"{predicted:.3f} and {taken:.3f} s"
        )
    off = sorted(max(p / t, t / p) for p, t in every)
    figure("how far a prediction is off, as a factor: median", median(off))
    figure("how far a prediction is off, as a factor: 90th percentile", percentile(off, 0.9))
    figure("a round, s: median", summary["round_s_median"])
    return off


def _slowest(round: Sequence[Pair]) -> Pair:
    return max(p for p, _ in round), max(t for _, t in round)


def _pairs(predicted: Sequence[float | None], taken: Sequence[float | None]) -> list[Pair]:
    """From the second round on, of assignments that were finished."""
    both = zip(predicted[1:], taken[1:], strict=True)
    return [(p, t) for p, t in both if p is not None and t is not None]


def _line(what: str, pairs: Sequence[Pair], note: str) -> None:
    shares = [p / t for p, t in pairs]
    figure(f"predicted ÷ taken, {what}: median of {len(shares)}", median(shares), note=note)
    for share in (0.1, 0.9):
        figure(f"predicted ÷ taken, {what}: {share * 100:.0f}th percentile", percentile(shares, share))


def _counted(cuts: Sequence[int | None]) -> str:
    return " ".join(f"{cut}:{cuts.count(cut)}" for cut in sorted({c for c in cuts if c is not None}))
