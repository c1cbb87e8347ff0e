"""Seconds of a round at 2D, and on one core, ÷ those at D on all cores: FedAvg, SplitFed and DTFL with a held server.

The same experiment in three ways, in turn: at D, at 2D, and on one core (`taskset`) at the D that this core needs.
Five unlike devices and a server of one CPU, held to a reference (DILATION_SPEED=host: not held). A repetition
gives one ratio of the medians of its rounds for each method. What is printed is their geometric mean, with its 95 %
interval (Student's t over the logarithms).

Environment: EDGEBED_REPETITIONS (5), DILATION_SPEED (reference x86-avx512), DILATION_FOLDER (runs/dilation; what is
there is not done again).
"""

from __future__ import annotations

import os
from pathlib import Path
from statistics import median

import msgspec

from benchmarks._figures import figure, no_fleets, progress
from benchmarks._runs import run, write_fleet
from orchestrator.fleet.host.cores import usable_cores
from orchestrator.fleet.spec.capacity import needed_dilation
from orchestrator.fleet.spec.profile import load_fleet
from orchestrator.records.account import load_summary
from orchestrator.records.compare.ratios import interval

CPUS, SERVER_CPUS, ROUNDS, WARM_UP = (1.0, 0.8, 0.6, 0.5, 0.4), 1.0, 6, 1
LIMIT = 0.03
MARGIN = 2.2
"""Ceilings are larger than CPUs, and a reference may be of a faster core than this host's."""
ARMS = ("D", "2D", "one core")
EXPERIMENT = f"""
name: dilation
fleet: fleet.yaml
data: {{name: digits}}
model: {{name: resnet-tiny}}
methods: [{{name: fedavg}}, {{name: splitfed}}, {{name: dtfl, tier: 2}}]
interleave: true
server: {{cpus: {SERVER_CPUS:g}}}
training: {{rounds: {ROUNDS}, batch_size: 32, max_batches: 4, stop_at_target: false}}
"""


class Measured(msgspec.Struct):
    """One run of the experiment: median seconds of a round after the first, by method."""

    dilation: float
    round_s: dict[str, float]
    late: int


def main() -> None:
    if no_fleets():
        return
    folder = Path(os.environ.get("DILATION_FOLDER", "runs/dilation")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    write_fleet(folder, [(cpus, 40) for cpus in CPUS])
    (folder / "experiment.yaml").write_text(EXPERIMENT)
    wanted = int(os.environ.get("EDGEBED_REPETITIONS", "5"))
    for number in range(wanted):
        over = progress(f"repetition {number + 1} of {wanted}")
        for arm in ARMS if number % 2 == 0 else reversed(ARMS):
            _measure(folder, arm, number)
        over()
    done = {arm: [_read(folder, arm, number) for number in range(wanted)] for arm in ARMS}
    for arm in ARMS[1:]:
        for method in done["D"][0].round_s:
            _show(method, arm, done[arm], done["D"])
    figure("late rounds of all runs", sum(each.late for runs in done.values() for each in runs), most=0)


def _measure(folder: Path, arm: str, number: int) -> None:
    """One run, unless it is done."""
    kept = folder / f"{arm}-{number}.json"
    if kept.exists():
        return
    spec = msgspec.structs.replace(load_fleet(folder / "fleet.yaml"), server_cpus=SERVER_CPUS)
    cores = 1 if arm == "one core" else usable_cores()
    dilation = MARGIN * max(1.5, needed_dilation(spec, cores)) * (2 if arm == "2D" else 1)
    core = str(min(os.sched_getaffinity(0)))
    runs = run(
        folder,
        f"{arm.replace(' ', '-')}-{number}",
        os.environ.get("DILATION_SPEED", "reference x86-avx512"),
        "--set",
        f"dilation={dilation:.4g}",
        before=("taskset", "-c", core) if arm == "one core" else (),
    )
    summaries = [load_summary(place) for place in runs]
    seconds = {each.method: median(row.round_s for row in each.rounds[WARM_UP:]) for each in summaries}
    late = sum(each.late_rounds or 0 for each in summaries)
    kept.write_bytes(msgspec.json.encode(Measured(dilation, seconds, late)))


def _read(folder: Path, arm: str, number: int) -> Measured:
    return msgspec.json.decode((folder / f"{arm}-{number}.json").read_bytes(), type=Measured)


def _show(method: str, arm: str, there: list[Measured], at_once: list[Measured]) -> None:
    pairs = list(zip(there, at_once, strict=True))
    ratio, low, high = interval([one.round_s[method] / other.round_s[method] for one, other in pairs])
    span = "no interval" if low is None or high is None else f"interval {low:.3f} to {high:.3f}"
    seconds = median(each.round_s[method] for each in at_once)
    dilations = f"D {at_once[0].dilation:.3g} and {there[0].dilation:.3g}"
    assert ratio is not None
    note = f"ratio {ratio:.3f}; {span}, {len(pairs)} pairs, {dilations}, {seconds:.2f} s at D"
    figure(f"{method}: seconds, {arm} ÷ D, off from 1", abs(ratio - 1), most=LIMIT, note=note)
