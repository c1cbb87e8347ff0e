"""How far a simulation is from a real run of the same method: per round, and per device and phase. Pure.

Rounds are compared by number. Seconds are divided by the dilation of their own run. An error is simulated ÷ real − 1.
For the phases of a device it is the difference of the medians over all rounds, also as a share of the device's real
median round: a large relative error of a phase of one millisecond does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median

import msgspec

from orchestrator.records.run_index import RunFacts
from orchestrator.records.timeline.timeline import OF_A_TASK, timelines
from orchestrator.records.types import SIMULATED


class RoundError(msgspec.Struct, frozen=True):
    round: int
    simulated_s: float
    real_s: float

    @property
    def error(self) -> float:
        return self.simulated_s / self.real_s - 1 if self.real_s > 0 else 0.0


class PhaseError(msgspec.Struct, frozen=True):
    """Medians over the rounds in which the device took part. `share` is (simulated − real) ÷ its real whole."""

    device: str
    phase: str  # one of OF_A_TASK, or "whole": task sent to last server step
    simulated_s: float
    real_s: float
    share: float


class SimError(msgspec.Struct, frozen=True):
    """How far a simulated run is from a real one. `median` and `p90` (nearest rank) are absolute errors of single
    rounds; `total_error` is the error of their sum."""

    simulated: str
    real: str
    method: str
    rounds: tuple[RoundError, ...]
    devices: tuple[PhaseError, ...]
    median: float
    p90: float
    total_error: float
    same_cuts: float  # share of assignments that were the same


def simulation_and_real(runs: Sequence[RunFacts]) -> tuple[RunFacts, RunFacts] | None:
    """The two, where exactly one of two runs of a method is simulated."""
    if len(runs) != 2 or runs[0].started.method != runs[1].started.method:
        return None
    simulated = [run for run in runs if run.enforcement == SIMULATED]
    real = [run for run in runs if run.enforcement != SIMULATED]
    return (simulated[0], real[0]) if simulated and real else None


def sim_error(simulated: RunFacts, real: RunFacts) -> SimError | None:
    """None where the two have no finished round in common."""
    pairs = _rounds(simulated, real)
    if not pairs:
        return None
    errors = sorted(abs(pair.error) for pair in pairs)
    numbers = {pair.round for pair in pairs}
    return SimError(
        simulated=simulated.started.run,
        real=real.started.run,
        method=real.started.method,
        rounds=tuple(pairs),
        devices=tuple(_devices(simulated, real, numbers)),
        median=median(errors),
        p90=errors[math.ceil(0.9 * len(errors)) - 1],
        total_error=sum(p.simulated_s for p in pairs) / sum(p.real_s for p in pairs) - 1,
        same_cuts=_same_cuts(simulated, real, numbers),
    )


def _rounds(simulated: RunFacts, real: RunFacts) -> list[RoundError]:
    seconds = [
        {f.number: f.finished.seconds / f.dilation for _, f in run.rounds() if f.finished is not None}
        for run in (simulated, real)
    ]
    return [RoundError(number, seconds[0][number], seconds[1][number]) for number in seconds[0] if number in seconds[1]]


def _devices(simulated: RunFacts, real: RunFacts, numbers: set[int]) -> Iterable[PhaseError]:
    ours, theirs = _phases(simulated, numbers), _phases(real, numbers)
    for device in sorted(set(ours) & set(theirs)):
        whole = median(theirs[device]["whole"])
        for phase in ("whole", *OF_A_TASK):
            a, b = (median(each[device][phase]) for each in (ours, theirs))
            if a or b:
                yield PhaseError(device, phase, a, b, (a - b) / whole if whole else 0.0)


def _phases(run: RunFacts, numbers: set[int]) -> dict[str, dict[str, list[float]]]:
    """Seconds by device and phase, one value per round that the device finished."""
    found: dict[str, dict[str, list[float]]] = {}
    for timeline in timelines(run, numbers):
        facts = timeline.facts
        for device, done in facts.done.items():
            sums = timeline.devices[device].sums
            mine = found.setdefault(device, {phase: [] for phase in ("whole", *OF_A_TASK)})
            mine["whole"].append(done.seconds / facts.dilation)
            for phase in OF_A_TASK:
                mine[phase].append(sums.get(phase, 0) / 1e9 / facts.dilation)
    return found


def _same_cuts(simulated: RunFacts, real: RunFacts, numbers: set[int]) -> float:
    cuts = [
        {
            (f.number, d): a.stages
            for _, f in run.rounds()
            if f.number in numbers
            for d, a in f.started.assignments.items()
        }
        for run in (simulated, real)
    ]
    both = set(cuts[0]) & set(cuts[1])
    return sum(cuts[0][key] == cuts[1][key] for key in both) / len(both) if both else 0.0
