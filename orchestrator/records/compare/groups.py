"""Runs of the same method with different seeds, taken together: means with confidence intervals, stragglers by profile.

Intervals are 95 %, by Student's t over FEWEST seeds or more; those of a speed-up on the logarithms of the ratios
between runs of the same seed (so they are of the geometric mean). Of fewer seeds the values themselves are shown. Where
a run of an experiment did not reach its target, the means of all its groups are restricted means (`censored`). Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import sqrt
from statistics import fmean, stdev
from typing import Any

import msgspec

from orchestrator.records.compare.censored import horizon, log_rank_p, restricted, times
from orchestrator.records.compare.ratios import interval, student
from orchestrator.records.summary import RoundFigures, Summary
from orchestrator.records.types import SIMULATED
from orchestrator.records.words.formatting import setting_texts
from orchestrator.records.words.vocabulary import NO_CAUSE, held_by

FEWEST = 3
"""Values that an interval is made of, at least. That of two would be six times as wide as their distance."""


class Estimate(msgspec.Struct, frozen=True):
    """A mean over `count` runs, its interval (None: fewer than FEWEST), and the values themselves."""

    mean: float | None
    low: float | None = None
    high: float | None = None
    count: int = 0
    values: tuple[float, ...] = ()


class Group(msgspec.Struct, frozen=True):
    """Runs of one method in one setting of one experiment. `reached` of `runs` reached the target. `restricted_to_s`:
    longer times to target count as this; None: all are known. `log_rank_p`: of the test beside the baseline, where a
    run of the two missed the target and each has several."""

    experiment: str
    method: str
    enforcement: str
    runs: int
    seeds: tuple[int, ...]
    reached: int
    time_to_target_s: Estimate
    speed_up: Estimate
    best_accuracy: Estimate
    round_s: Estimate
    straggler_gap_s: Estimate
    idle_share: Estimate
    bytes_total: Estimate
    setting: dict[str, Any] = {}
    restricted_to_s: float | None = None
    log_rank_p: float | None = None


class ProfileRow(msgspec.Struct, frozen=True):
    """One class of devices in one group: in what share of the rounds it had the straggler, and what that cost."""

    experiment: str
    method: str
    profile: str
    rounds: int  # in which the straggler had this profile, over all runs
    share: float
    waited_s: float  # device-seconds that all others waited in those rounds, mean over the runs
    why: dict[str, int]  # rounds by cause


Key = tuple[str, str, str, str]


def key(summary: Summary) -> Key:
    """The values that all runs of a group have in common."""
    return summary.experiment, summary.method, summary.enforcement, ", ".join(setting_texts(summary.setting))


def in_setting(summary: Summary) -> str:
    """The method and its setting in a sweep: `dtfl, batch_size 32`."""
    return ", ".join((summary.method, *setting_texts(summary.setting)))


def named(summary: Summary) -> str:
    """The same, with a mark where it was simulated."""
    return f"{in_setting(summary)} (simulated)" if _simulated(summary) else in_setting(summary)


def group_names(summaries: Sequence[Summary]) -> dict[Key, str]:
    """By group its method; where two groups have the same, with the experiment, and then with what held the limits."""
    mixed = len({summary.enforcement == SIMULATED for summary in summaries}) > 1  # else a note says it of all
    found = {key: named(runs[0]) if mixed else in_setting(runs[0]) for key, runs in by_key(summaries).items()}
    for more in ({key: key[0] for key in found}, {key: held_by(key[2]) for key in found}):
        count = Counter(found.values())
        found = {key: name if count[name] == 1 else f"{name}, {more[key]}" for key, name in found.items()}
    return found


def default_baseline(summaries: Sequence[Summary]) -> Summary:
    """The run that speed-ups refer to where none was chosen: the last one of FedAvg, or the first of all."""
    return next((run for run in reversed(summaries) if run.method == "fedavg"), summaries[0])


def bases(summaries: Sequence[Summary], chosen: Summary | None = None) -> dict[Key, list[Summary]]:
    """By group the runs that its speed-ups refer to: those of the baseline's method in the group's own setting.

    Args:
        chosen: a run of the baseline. None: the default one, and simulated runs are never put beside real ones.
    """
    groups, found = by_key(summaries), {}
    for own, (first, *_) in groups.items():
        base = chosen or default_baseline(summaries)
        if chosen is None and _simulated(first) != _simulated(base):
            others = (run for run in summaries if run.method == base.method and _simulated(run) == _simulated(first))
            base = next(others, first)
            if base.method != default_baseline(summaries).method:
                continue
        alike = groups.get((*key(base)[:3], own[3]))
        found[own] = groups[key(base)] if alike is None and not base.setting else alike or []
    return found


def _simulated(run: Summary) -> bool:
    return run.enforcement == SIMULATED


def group(summaries: Sequence[Summary], baseline: Summary | None = None) -> list[Group]:
    """Groups in the order of their first runs; speed-ups refer to `bases`."""
    groups, base = by_key(summaries), bases(summaries, baseline)
    until = {
        name: horizon([runs for own, runs in groups.items() if own[0] == name]) for name in {own[0] for own in groups}
    }
    return [_group(runs, base.get(own, []), until[own[0]]) for own, runs in groups.items()]


def profiles(summaries: Sequence[Summary]) -> list[ProfileRow]:
    """Stragglers by profile, the most often first within each group."""
    return [row for runs in by_key(summaries).values() for row in _profiles(runs)]


def by_key(summaries: Iterable[Summary]) -> dict[Key, list[Summary]]:
    """The runs of each group, in the order of the groups' first runs."""
    groups: dict[Key, list[Summary]] = {}
    for summary in summaries:
        groups.setdefault(key(summary), []).append(summary)
    return groups


def _group(runs: list[Summary], base: list[Summary], until: float | None) -> Group:
    def over(measure: Callable[[Summary], float | None]) -> Estimate:
        return estimate([value for run in runs if (value := measure(run)) is not None])

    experiment, method, enforcement = runs[0].experiment, named(runs[0]), runs[0].enforcement
    reached = sum(run.time_to_target_s is not None for run in runs)
    itself = bool(base) and base[0] is runs[0]
    censored = not itself and any(run.time_to_target_s is None for run in (*runs, *base))
    return Group(
        experiment,
        method,
        enforcement,
        len(runs),
        tuple(run.seed for run in runs),
        reached,
        time_to_target_s=estimate(restricted(times(runs), until) if until and reached else _times(runs)),
        speed_up=Estimate(1.0, count=len(runs)) if itself else speed_up(runs, base),
        best_accuracy=over(lambda run: run.best_accuracy),
        round_s=over(lambda run: run.round_s_median),
        straggler_gap_s=over(lambda run: run.straggler_gap_s),
        idle_share=over(lambda run: run.idle_share_mean),
        bytes_total=over(lambda run: run.bytes_up_total + run.bytes_down_total),
        setting=runs[0].setting,
        restricted_to_s=until if reached else None,
        log_rank_p=log_rank_p(times(runs), times(base)) if censored and min(len(runs), len(base)) > 1 else None,
    )


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and t interval of some values."""
    if not values:
        return Estimate(None)
    mean, known = fmean(values), tuple(values)
    if len(values) < FEWEST:
        return Estimate(mean, count=len(values), values=known)
    reach = student(len(values) - 1) * stdev(values) / sqrt(len(values))
    return Estimate(mean, mean - reach, mean + reach, len(values), known)


def mean_by_name(sums: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of several sums by name. A name that one lacks counts as 0 there."""
    known = dict.fromkeys(name for each in sums for name in each)
    return {name: fmean(each.get(name, 0.0) for each in sums) for name in known}


def mean_device(run: Summary) -> dict[str, float]:
    """Seconds of a run's mean device by what they were spent on, over all rounds."""
    return mean_by_name([device.phase_s for device in run.devices.values()])


def of_ratios(ratios: Sequence[float]) -> Estimate:
    """The same of positive ratios: their geometric mean, and Student's t on the logarithms."""
    mean, low, high = interval(ratios)
    if len(ratios) < FEWEST:
        low = high = None
    return Estimate(mean, low, high, len(ratios), tuple(ratios))


def _times(runs: Sequence[Summary]) -> list[float]:
    return [run.time_to_target_s for run in runs if run.time_to_target_s is not None]


def speed_up(runs: Sequence[Summary], base: Sequence[Summary]) -> Estimate:
    """Time to target of the baseline ÷ that of the runs, over pairs of one seed; None where no pair reached it. Where a
    run missed it, the ratio of the restricted means, without an interval."""
    if _times(runs) and _times(base) and (until := horizon([runs, base])):
        mean = fmean(restricted(times(base), until)) / fmean(restricted(times(runs), until))
        return Estimate(mean, count=len(runs))
    own, other = ({run.seed: run.time_to_target_s for run in side} for side in (runs, base))
    return of_ratios([base_time / time for seed, time in own.items() if time and (base_time := other.get(seed))])


def _profiles(runs: list[Summary]) -> list[ProfileRow]:
    rows: dict[str, list[RoundFigures]] = {}
    for row in (row for run in runs for row in run.rounds):
        if row.straggler_profile is not None:
            rows.setdefault(row.straggler_profile, []).append(row)
    found = [_profile(name, own, runs, len(own) / sum(map(len, rows.values()))) for name, own in rows.items()]
    return sorted(found, key=lambda row: -row.rounds)


def _profile(name: str, rows: Sequence[RoundFigures], runs: Sequence[Summary], share: float) -> ProfileRow:
    waited_s = sum((row.waited_s for row in rows), 0.0) / len(runs)
    why = Counter(row.straggler_why or NO_CAUSE for row in rows)
    return ProfileRow(runs[0].experiment, named(runs[0]), name, len(rows), share, waited_s, dict(why))
