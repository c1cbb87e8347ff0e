"""How far the grain of CPU quotas misleads DTFL's scheduler: seconds predicted ÷ taken, with and without pacing.

1 is right. On small networks a batch fits into one period's quota. Under `quota` a device then takes almost no time for
some batches and a whole period for others, which no scheduler can predict. Runs of the grains alternate, so that a host
that drifts changes all alike. The first round of a run, planned from declared profiles, is left out.

Environment: SCHEDULER_EXPERIMENT (methods), SCHEDULER_ROUNDS (10), SCHEDULER_REPEATS (2), SCHEDULER_GRAINS
(quota,pacing), SCHEDULER_BACKEND (local).
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any, cast

import msgspec

from benchmarks._figures import figure, percentile, skip
from benchmarks._paths import EXPERIMENTS
from benchmarks._runs import opened
from orchestrator.experiment import Experiment, Grain, load
from orchestrator.records.account import load_summary
from orchestrator.runs import session


def main() -> None:
    backend = os.environ.get("SCHEDULER_BACKEND", "local")
    if os.geteuid() != 0 and backend == "local":
        skip("needs root: network namespaces and cgroups")
        return
    grains = os.environ.get("SCHEDULER_GRAINS", "quota,pacing").split(",")
    path = EXPERIMENTS / f"{os.environ.get('SCHEDULER_EXPERIMENT', 'methods')}.yaml"
    found: dict[str, list[float]] = {grain: [] for grain in grains}
    for repeat in range(int(os.environ.get("SCHEDULER_REPEATS", "2"))):
        for grain in grains:
            with tempfile.TemporaryDirectory() as folder:
                experiment = _wanted(load(path), cast(Grain, grain), repeat)
                summary = load_summary(asyncio.run(_play(experiment, path, Path(folder), backend))).as_dict()
            ratios = _ratios(summary)
            found[grain] += ratios
            _show(f"{grain}, run {repeat + 1}", ratios)
            figure(f"  round of {grain}, s: median", summary["round_s_median"])
    off = {grain: _show(f"{grain}, all runs", ratios) for grain, ratios in found.items()}
    if "quota" in off and "pacing" in off:
        figure("error of the prediction, quota ÷ pacing", off["quota"] / off["pacing"], least=1.0)


def _wanted(experiment: Experiment, grain: Grain, repeat: int) -> Experiment:
    training = msgspec.structs.replace(
        experiment.training,
        rounds=int(os.environ.get("SCHEDULER_ROUNDS", "10")),
        seed=experiment.training.seed + repeat,
        stop_at_target=False,
    )
    return msgspec.structs.replace(experiment, methods=[{"name": "dtfl"}], training=training, grain=grain)


async def _play(experiment: Experiment, path: Path, folder: Path, backend: str) -> Path:
    async with opened(experiment, path, backend) as fleet:
        request = session.Request(experiment, path, folder, backend=backend)
        watch = session.Watch(session.quiet)
        return (await session.run_methods(request, fleet.controller, fleet.data, fleet.calibration, watch))[0]


def _ratios(summary: Mapping[str, Any]) -> list[float]:
    """Predicted ÷ taken of every finished assignment from the second round on."""
    return [
        predicted / taken
        for name, values in summary["predicted_s"].items()
        for predicted, taken in list(zip(values, summary["actual_s"][name], strict=True))[1:]
        if predicted is not None and taken is not None
    ]


def _show(what: str, ratios: list[float]) -> float:
    """Returns the median factor by which a prediction is off, less 1."""
    figure(f"predicted ÷ taken, {what}: median of {len(ratios)}", median(ratios))
    for share in (0.1, 0.9):
        figure(f"predicted ÷ taken, {what}: {share * 100:.0f}th percentile", percentile(ratios, share))
    off = median(max(ratio, 1 / ratio) - 1 for ratio in ratios)
    figure(f"a prediction is off by, {what}: median share", off)
    return off
