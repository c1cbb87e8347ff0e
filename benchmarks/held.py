"""A core that is recorded and played by another: the rounds of four methods, as they were and as they are held.

A repetition runs the methods at the speed of this host (their rounds alternate), records a reference from these runs,
and runs the methods again, held to it. Methods that plan from measured times repeat the recorded plan (`--plan`), so
each round is the same work twice. What is printed is the seconds of all rounds after the first, held ÷ recorded, with
the interval over the repetitions, and the standard deviation of that ratio over the rounds.

Core `limited` records from agents that use no vector units beyond SSE 4.1: another core, whose kinds of work have other
ratios. Core `own` records from ordinary agents: what the hold changes by itself. Both are played by ordinary agents. At
the end, limited agents are asked to play the ordinary core's reference, which they cannot: it is refused, or every run
is marked late.

The five devices have equal CPUs and unlike links. With unlike CPUs the recorded runs cannot be met: the same batch
takes more CPU time under a small quota (measured: 6.3 ms at 0.1 CPU, 5.1 ms at 1), while a reference has one cost for
it. HELD_FLEET names another fleet file, such as profiles/fleets/dtfl-5.yaml, to see by how much.

Environment: HELD_REPETITIONS (5), HELD_CORES (limited,own), HELD_FOLDER (runs/held; what is there is not done again),
HELD_ROUNDS (6), HELD_DILATION (4.5: both runs have the same, for the orchestrator is not dilated).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev

import msgspec

from benchmarks._figures import figure, no_fleets, skip
from benchmarks._runs import edgebed, run, write_fleet
from orchestrator.records.account import load_summary
from orchestrator.records.compare.ratios import interval

LIMITED = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}
CORES: dict[str, dict[str, str]] = {"limited": LIMITED, "own": {}}
LIMITS = {"limited": 0.02, "own": 0.03}
PLAYED = "x86-avx512"
CPUS, RATES = 0.5, (10, 20, 30, 50, 100)

EXPERIMENT = """
name: held
fleet: {fleet}
data: {{name: digits}}
partition: {{kind: iid}}
model: {{name: resnet-tiny}}
interleave: true
server: {{cpus: 1}}
dilation: {dilation}
methods:
  - {{name: dtfl, tiers: 7}}
  - {{name: fedavg}}
  - {{name: splitfed}}
  - {{name: s2fl}}
training: {{rounds: {rounds}, stop_at_target: false, batch_size: 32, codec: {{dtype: uint8, zstd: true}}, seed: 1}}
"""


PLANS_ANEW = ("dtfl", "s2fl")
"""Methods whose plans follow measured times."""


class Repetition(msgspec.Struct):
    """Seconds of the rounds after the first, by method: recorded at the speed of the host, and held."""

    recorded: dict[str, list[float]]
    held: dict[str, list[float]]
    late: int

    def ratio(self, method: str) -> float:
        return sum(self.held[method]) / sum(self.recorded[method])

    def ratios(self, method: str) -> list[float]:
        """Held ÷ recorded of each round."""
        return [one / other for one, other in zip(self.held[method], self.recorded[method], strict=True)]


def main() -> None:
    if no_fleets():
        return
    folder = Path(os.environ.get("HELD_FOLDER", "runs/held")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    cores = os.environ.get("HELD_CORES", "limited,own").split(",")
    fleet = Path(os.environ.get("HELD_FLEET") or write_fleet(folder, [(CPUS, rate) for rate in RATES])).resolve()
    rounds = int(os.environ.get("HELD_ROUNDS", "6"))
    dilation = os.environ.get("HELD_DILATION", "4.5")
    (folder / "experiment.yaml").write_text(EXPERIMENT.format(fleet=fleet, rounds=rounds, dilation=dilation))
    for number in range(1, int(os.environ.get("HELD_REPETITIONS", "5")) + 1):
        for core in cores:
            repeat(folder, core, number)
    for core in cores:
        _show(folder, core)
    if "limited" in cores:
        _refused(folder)


def repeat(folder: Path, core: str, number: int) -> None:
    """One repetition, unless it is done."""
    kept = folder / f"done-{core}-{number}.json"
    if kept.exists():
        return
    name = f"{core}-{number}"
    recorded = run(folder, f"{name}-host", "host", environment=CORES[core])
    options = [option for place in recorded for option in ("--run", str(place))]
    edgebed(folder, "reference", "record", name, *options, "--quiet", environment=CORES[core])
    speed = f"reference {folder / name}.json"
    fixed = (f"--method={method}" for method in recorded_methods(recorded) if method not in PLANS_ANEW)
    held = run(folder, f"{name}-held", speed, *fixed)
    for place, method in zip(recorded, recorded_methods(recorded), strict=True):
        if method in PLANS_ANEW:
            held += run(folder, f"{name}-held-{method}", speed, f"--method={method}", "--plan", str(place))
    late = sum(load_summary(place).late_rounds or 0 for place in held)
    kept.write_bytes(msgspec.json.encode(Repetition(_rounds(recorded), _rounds(held), late)))


def recorded_methods(runs: list[Path]) -> list[str]:
    return [load_summary(place).method for place in runs]


def _rounds(runs: list[Path]) -> dict[str, list[float]]:
    summaries = [load_summary(place) for place in runs]
    return {each.method: [row.round_s for row in each.rounds[1:]] for each in summaries}


def _show(folder: Path, core: str) -> None:
    done = [
        msgspec.json.decode(path.read_bytes(), type=Repetition) for path in sorted(folder.glob(f"done-{core}-*.json"))
    ]
    for method in done[0].recorded:
        ratio, low, high = interval([each.ratio(method) for each in done])
        seconds = fmean(fmean(each.recorded[method]) for each in done)
        sd = fmean(stdev(each.ratios(method)) for each in done)
        note = f"{seconds:.2f} s, sd of a round's ratio {sd:.3f}"
        _off(f"{core} core, {method}: rounds held ÷ recorded", ratio, low, high, LIMITS[core], note)
    for one, other in pairwise(done[0].recorded):
        ratios = [each.ratio(one) / each.ratio(other) for each in done]
        _off(f"{core} core, {one} ÷ {other}: held ÷ recorded", *interval(ratios), LIMITS[core], "")
    same = sum(_order(each.held) == _order(each.recorded) for each in done)
    figure(f"{core} core: repetitions with the same order of methods", same, least=len(done), note=f"of {len(done)}")
    figure(f"{core} core: late rounds of the held runs", sum(each.late for each in done), most=0)


def _order(rounds: Mapping[str, list[float]]) -> list[str]:
    return sorted(rounds, key=lambda method: sum(rounds[method]))


def _off(what: str, ratio: float | None, low: float | None, high: float | None, most: float, note: str) -> None:
    if ratio is None:
        skip(f"{what}: no repetitions")
        return
    span = "no interval" if low is None or high is None else f"{low:.3f} to {high:.3f}"
    figure(f"{what}, off from 1", abs(ratio - 1), most=most, note=f"ratio {ratio:.3f}, {span}; {note}")


def _refused(folder: Path) -> None:
    """The ordinary core's reference, which limited agents cannot play."""
    try:
        late = sum(
            load_summary(place).late_rounds or 0
            for place in run(folder, "refused", f"reference {PLAYED}", environment=LIMITED)
        )
    except RuntimeError as error:
        print(f"  limited core, {PLAYED} played: refused: {str(error).splitlines()[-1]}", flush=True)
        return
    figure(f"limited core, {PLAYED} played: late rounds", late, least=1)
