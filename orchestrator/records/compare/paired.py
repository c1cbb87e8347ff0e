"""Ratios between methods whose rounds alternated on one fleet (`interleave: true`), with intervals. Pure.

A pair is the same round of two methods, played in the same block: minutes apart at most, so that the host's drift is
nearly the same in both. The ratio of an experiment is the geometric mean of its pairs (P. J. Fleming and J. J. Wallace,
"How not to lie with statistics", Comm. ACM 29(3), 1986). Intervals are 95 %, Student's t on the logarithms. With one
experiment they are over its rounds, and hold for that standing fleet and seed. With several (seeds, or repetitions)
they are over the experiments' ratios: the higher level decides, as T. Kalibera and R. Jones say ("Rigorous benchmarking
in reasonable time", ISMM 2013).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import exp, log
from statistics import fmean

import msgspec

from orchestrator.records.compare.groups import Estimate, default_baseline, key, named, of_ratios
from orchestrator.records.summary import Summary
from orchestrator.records.types import SIMULATED


class Paired(msgspec.Struct, frozen=True):
    """One method beside the baseline, in the experiments that interleaved both."""

    method: str
    baseline: str
    # seconds of a round ÷ those of the baseline's round in the same block. `count`: of rounds with one experiment, else
    # of experiments
    round_ratio: Estimate
    time_ratio: Estimate  # time to target ÷ the baseline's, of the experiments in which both reached it
    rounds: int  # pairs of rounds, over all experiments
    experiments: int  # that have such a pair; each seed is one
    seeds: tuple[int, ...]  # of these experiments

    @property
    def unit(self) -> str:
        """What its intervals are over, where it has several experiments."""
        return "seeds" if len(set(self.seeds)) == self.experiments else "experiments"


def paired(summaries: Sequence[Summary], baseline: Summary | None = None) -> list[Paired]:
    """Every method beside that of `baseline` (None: the default one), setting by setting; nothing where no rounds
    alternated with its."""
    settings: dict[str, list[Summary]] = {}
    for summary in summaries:
        settings.setdefault(key(summary)[-1], []).append(summary)
    return [pair for own in settings.values() for pair in _in_setting(own, baseline or default_baseline(summaries))]


def _in_setting(summaries: Sequence[Summary], baseline: Summary) -> list[Paired]:
    series: dict[tuple[str, int], dict[str, Summary]] = {}  # an experiment with several seeds is as many
    for summary in summaries:
        if summary.interleaved:
            runs = series.setdefault((summary.series, summary.seed), {})
            runs[_unique(named(summary), runs)] = summary
    base = named(msgspec.structs.replace(baseline, setting=summaries[0].setting))
    methods = dict.fromkeys(name for runs in series.values() for name in runs if name != base)
    found = [_paired(name, base, [runs for runs in series.values() if {name, base} <= runs.keys()]) for name in methods]
    return [each for each in found if each.rounds]


def _unique(name: str, taken: dict[str, Summary]) -> str:
    """An experiment may have a method twice, with other options."""
    number = Counter(each.partition(" #")[0] for each in taken)[name] + 1
    return name if number == 1 else f"{name} #{number}"


def _paired(name: str, base: str, series: Sequence[dict[str, Summary]]) -> Paired:
    pairs = {i: ratios for i, runs in enumerate(series) if (ratios := round_ratios(runs[name], runs[base]))}
    rounds = list(pairs.values())
    single = rounds[0] if len(rounds) == 1 else [exp(fmean(map(log, ratios))) for ratios in rounds]
    times = [(runs[name].time_to_target_s, runs[base].time_to_target_s) for runs in series]
    return Paired(
        name,
        base,
        of_ratios(single),
        of_ratios([own / other for own, other in times if own and other]),
        sum(map(len, rounds)),
        len(rounds),
        tuple(series[i][name].seed for i in pairs),
    )


def round_ratios(own: Summary, base: Summary) -> list[float]:
    """Of all blocks that both played, but the first on each standing fleet: in it the devices build the network, which
    only the method that comes first pays for."""
    mine, other = _by_block(own), _by_block(base)
    first: dict[str, int] = {}
    for fleet, number in (*mine, *other):
        first[fleet] = min(number, first.get(fleet, number))
    blocks = [block for block in mine if block in other and block[1] > first[block[0]]]
    return [mine[block] / other[block] for block in blocks if mine[block] > 0 and other[block] > 0]


def _by_block(summary: Summary) -> dict[tuple[str, int], float]:
    """Seconds of the rounds, by standing fleet and number of the block."""
    named_blocks = [(row.block.rpartition("/"), row.round_s) for row in summary.rounds if row.block is not None]
    return {(fleet, int(number)): seconds for (fleet, _, number), seconds in named_blocks}


def unpaired(summaries: Sequence[Summary]) -> list[str]:
    """A note for the comparison of real runs whose rounds did not alternate."""
    real = [summary for summary in summaries if summary.enforcement != SIMULATED]
    if len({summary.method for summary in real}) < 2 or paired(real):
        return []
    return [
        "the methods' rounds did not alternate, so a change of the host's speed between the runs is part of every "
        "ratio; `interleave: true` lets them alternate"
    ]
