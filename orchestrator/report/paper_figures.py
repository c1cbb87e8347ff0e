"""Figures for papers of several runs: one curve or bar per method, with what its seeds differ by."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from orchestrator.records.compare import groups
from orchestrator.records.compare.censored import curve as curve_of
from orchestrator.records.compare.censored import times
from orchestrator.records.compare.comparison import compare, headline
from orchestrator.records.compare.curves import Along, band, curve
from orchestrator.records.compare.groups import FEWEST, Estimate, Group, mean_by_name, mean_device
from orchestrator.records.compare.paired import Paired, paired
from orchestrator.records.compare.tabulate import with_interval
from orchestrator.records.summary import Summary
from orchestrator.records.words import vocabulary
from orchestrator.records.words.drawing import bars, phases
from orchestrator.records.words.formatting import accuracy, percent, seconds, share
from orchestrator.records.words.palette import BOUNDS, DASHES, RUNS, WAITED_FOR, style
from orchestrator.report.charts import seconds_by_bound
from orchestrator.report.figures import paint
from orchestrator.report.look import BOUND, OF_RUNS, PAIRED, REACHED, WAITED, Look, check
from orchestrator.report.sheet import POINTS, About, Plot, beside_bars, label_x, name_rows, rows_in, write

MARKERS = "os^Dvx*P"

SPREAD_TEXT = {
    "range": "least to greatest of the seeds",
    "deviation": "one standard deviation over the seeds",
    "interval": "95 % interval of the mean over the seeds (Student's t)",
}

ROW_IN = 0.26
"""Height of a method's bar and of the room around it."""


class Series(msgspec.Struct, frozen=True):
    """The runs of one method in one setting, with its colour, dash and marker. `pair`: its ratio to the baseline, where
    their rounds alternated."""

    label: str
    runs: list[Summary]
    times: Group
    colour: str
    dash: Any
    marker: str
    pair: Paired | None = None


Draw = Callable[[Any, Sequence[Series], Look], str | None]


def write_figures(
    summaries: Sequence[Summary], paths: Sequence[Path], only: str | None, look: Look, baseline: Summary | None = None
) -> list[Path]:
    """Write the figures of some runs and their captions (`sheet.write`), and return the files written.

    Args:
        only: the name of one figure; None: all of OF_RUNS for which the runs have figures.
        baseline: that pairs of rounds refer to; None: `groups.default_baseline`.

    Raises:
        UsageError: an unknown figure or ending of a file.
    """
    check(paths, only, OF_RUNS)
    about = About("Edgebed: runs compared", [s.run for s in summaries], compare(summaries).notes, headline(summaries))
    return write(paths, plots(summaries, only, baseline), look, about)


def plots(summaries: Sequence[Summary], only: str | None = None, baseline: Summary | None = None) -> list[Plot]:
    """The figures of some runs, as `write_figures` draws them."""
    series = _series(summaries, baseline)
    chosen = [only] if only is not None else [name for name in OF_RUNS if _has_data(name, series)]
    return [_plot(name, series) for name in chosen]


def _plot(name: str, series: Sequence[Series]) -> Plot:
    title, draw, bars = FIGURES[name]
    height_in = rows_in(len(series), ROW_IN) if bars else None
    return Plot(name, title, lambda axes, look: draw(axes, series, look), height_in=height_in)


def _has_data(name: str, series: Sequence[Series]) -> bool:
    if name == PAIRED:
        return any(one.pair is not None for one in series)
    if name == REACHED:
        return any(one.times.restricted_to_s for one in series)
    shares: dict[str, Callable[[Summary], dict[str, float]]]
    shares = {BOUND: bound_shares, WAITED: lambda run: run.wait_share_mean}
    of = shares.get(name)
    return of is None or any(of(run) for one in series for run in one.runs)


def _series(summaries: Sequence[Summary], baseline: Summary | None) -> list[Series]:
    """Groups of runs in the order of their first runs."""
    found, times = groups.by_key(summaries), groups.group(summaries, baseline)
    methods, pairs = [key[1] for key in found], {pair.method: pair for pair in paired(summaries, baseline)}
    return [
        _one(name, found[key], times[i], methods[:i].count(methods[i]), pairs)
        for i, (key, name) in enumerate(groups.group_names(summaries).items())
    ]


def _one(label: str, runs: list[Summary], times: Group, before: int, pairs: Mapping[str, Paired]) -> Series:
    """In the colour of the method; `before`: how many groups of the same method there are already."""
    own = style(runs[0].method, before)
    dash, marker = DASHES[own.dash], MARKERS[own.marker]
    pair = pairs.get(groups.named(runs[0]))
    return Series(label, runs, times, RUNS[own.colour], (0, dash) if dash else "-", marker, pair)


# ---- curves ----


def _accuracy_along(along: Along, label: str, scale: float) -> Draw:
    """Draws mean accuracy and band of each method along an axis; x values are divided by `scale`."""

    def draw(axes: Any, series: Sequence[Series], look: Look) -> str:
        for one in series:
            _add_curve(axes, one, along, scale, look)
        targets = sorted({run.target_accuracy for one in series for run in one.runs})
        for target in targets:
            axes.axhline(100 * target, ls=(0, (1, 2)), lw=0.8, color="#666", zorder=1, label=f"target {share(target)}")
        axes.set(ylabel="test accuracy, %", xlim=(0, None))
        label_x(axes, label, look)
        if along == "rounds":
            axes.xaxis.get_major_locator().set_params(integer=True)
        elif look.log and along == "time":
            axes.set(xscale="log", xlim=(None, None))
            axes.xaxis.get_major_locator().set_params(subs=(1, 2, 5))  # a run may last less than one decade
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter("")
        _set_accuracy_limits(axes)
        if any(len(one.runs) >= FEWEST for one in series):
            axes.fill_between([], [], color="#888", alpha=0.3, lw=0, label=f"band: {SPREAD_TEXT[look.spread]}")
        return _spread_told(series, look, "Band")

    return draw


def _add_curve(axes: Any, one: Series, along: Along, scale: float, look: Look) -> None:
    """The run itself, with its rounds; of two the mean between them; of more the mean in its band."""
    curves = [curve(run, along) for run in one.runs]
    found = band(curves, look.spread)
    if found is None:
        return
    line = {"color": one.colour, "ls": one.dash}
    if len(curves) == 1:
        line |= {"marker": one.marker, "ms": 3, "markevery": max(1, len(found.x) // 8)}
    axes.plot([x / scale for x in found.x], [100 * y for y in found.mean], label=one.label, **line)
    if 1 < len(curves) < FEWEST:
        for points in curves:
            axes.plot([x / scale for x, _ in points], [100 * y for _, y in points], color=one.colour, lw=0.6, alpha=0.6)
    elif len(curves) >= FEWEST:
        low, high = ([100 * y for y in side] for side in (found.low, found.high))
        axes.fill_between([x / scale for x in found.x], low, high, color=one.colour, alpha=0.18, lw=0)


def _set_accuracy_limits(axes: Any) -> None:
    """From the data, at most 0 to 100 %, so that curves near the top can be told apart."""
    low, high = axes.get_ylim()
    axes.set_ylim(max(0.0, low), min(101.0, high))


def _spread_told(series: Sequence[Series], look: Look, what: str) -> str:
    """For the caption: what bands or whiskers are, and that few seeds have none."""
    counts = {len(one.runs) for one in series}
    told = f"{what}: {SPREAD_TEXT[look.spread]}." if max(counts) >= FEWEST else ""
    few = f" Below {FEWEST} seeds each of them is drawn." if counts & set(range(2, FEWEST)) else ""
    return f"{told}{few}".strip()


# ---- bars ----


def _time_to_target(axes: Any, series: Sequence[Series], look: Look) -> str:
    """One bar per method to the mean of its seeds, which are drawn as points. A method that never got there has a text
    instead."""
    texts = []
    for index, one in enumerate(series):
        found = one.times.time_to_target_s
        if found.mean is not None:
            axes.barh(index, found.mean, 0.6, color=one.colour, alpha=0.55)
            _add_estimate(axes, found, index, one)
        end = max((each for each in (found.high, *found.values) if each is not None), default=0.0)
        texts.append((end, index, _reached(found, one.times.reached, one.runs)))
    name_rows(axes, [one.label for one in series], look)
    targets = sorted({run.target_accuracy for one in series for run in one.runs})
    label_x(axes, f"seconds to {' or '.join(share(target) for target in targets)} test accuracy", look)
    beside_bars(axes, texts, POINTS[look.width] - 1)
    until = sorted({seconds(one.times.restricted_to_s) for one in series if one.times.restricted_to_s})
    told = f" As runs missed the target, these are Kaplan–Meier means up to {', '.join(until)}." if until else ""
    return _spread_told(series, Look(spread="interval"), "Whisker") + told


def _target_reached(axes: Any, series: Sequence[Series], look: Look) -> str:
    """Kaplan–Meier: the share of a method's runs that have reached the target; a tick where a run ended without it."""
    for one in series:
        found = times(one.runs)
        at, left = curve_of(found)
        x, y = [0.0, *at], [0.0, *(100 * (1 - share) for share in left)]
        axes.step(x, y, where="post", label=one.label, color=one.colour, ls=one.dash)
        missed = [end for end, reached in found if not reached]
        axes.plot(missed, [y[bisect_right(x, end) - 1] for end in missed], "|", color=one.colour, ms=6)
    axes.set(ylabel="runs that reached the target, %", xlim=(0, None), ylim=(-2, 102))
    label_x(axes, "seconds of training", look)
    return "Kaplan–Meier estimates; | : a run ended without the target."


def _add_estimate(axes: Any, found: Estimate, index: int, one: Series, marker: str = "") -> None:
    """The values, and the interval of their mean where there is one. The legend names the interval once."""
    if marker:
        axes.plot(found.mean, index, marker, color=one.colour, ms=4)
    elif found.count > 1:
        axes.plot(found.values, [index] * found.count, "o", color=one.colour, ms=2.5, mec="white", mew=0.4)
    if found.low is None or found.high is None:
        return
    label = "whisker: 95 % interval of the mean"
    named = label in axes.get_legend_handles_labels()[1]
    for width, colour in ((2.6, "white"), (0.9, "#333")):  # a halo: whiskers are seen on every colour
        drawn = axes.plot([found.low, found.high], [index] * 2, "|-", color=colour, lw=width, ms=5, mew=width)
    drawn[0].set_label("_" if named else label)


def _reached(found: Estimate, reached: int, runs: Sequence[Summary]) -> str:
    if found.mean is None:
        best = max((run.best_accuracy or 0.0 for run in runs), default=0.0)
        return f"not reached (best {accuracy(best)})"
    told = with_interval(Estimate(found.mean, values=found.values), seconds)
    return told if reached == len(runs) else f"{told}; {reached} of {len(runs)} runs"


def _paired_ratio(axes: Any, series: Sequence[Series], look: Look) -> None:
    """One point per method with the 95 % interval of its rounds ÷ those of the baseline in the same block."""
    for index, one in enumerate(series):
        if one.pair is not None:
            _add_estimate(axes, one.pair.round_ratio, index, one, one.marker)
    axes.axvline(1, ls=(0, (1, 2)), lw=0.8, color="#666", zorder=1)
    name_rows(axes, [one.label for one in series], look)
    base = next((one.pair.baseline for one in series if one.pair is not None), "the baseline")
    label_x(axes, f"seconds of a round ÷ seconds of {base}'s in the same block", look)
    axes.margins(x=0.15)


def _stacked(axes: Any, series: Sequence[Series], look: Look) -> None:
    """Seconds of the mean device by what they were spent on, over the whole run, mean over the seeds."""
    sums = {one.label: mean_by_name([mean_device(run) for run in one.runs]) for one in series}
    like = phases({name for each in sums.values() for name in each})
    paint(bars(sums, like, seconds, x="seconds until the end of the run", lines=2), axes, look)


def bound_shares(summary: Summary) -> dict[str, float]:
    """Shares of a run's rounds by kind of bound; empty where they are not known."""
    sums = seconds_by_bound(summary.bound_by.parts)
    whole = sum(sums.values())
    return {what: length / whole for what, length in sums.items()} if whole else {}


def _stacked_shares(
    of: Callable[[Summary], dict[str, float]], like: Mapping[str, str], words: Mapping[str, str]
) -> Draw:
    """Draws shares of the rounds by kind, mean over the seeds.

    Args:
        of: shares of one run by kind.
        like: by kind, the phase that has the same colour.
        words: by kind.
    """
    looks = {kind: (phase, words[kind]) for kind, phase in like.items()}

    def draw(axes: Any, series: Sequence[Series], look: Look) -> None:
        shares = {one.label: mean_by_name([found for run in one.runs if (found := of(run))]) for one in series}
        label = "share of the time of all rounds"
        paint(bars(shares, looks, percent, to=1, format="share", x=label, lines=2), axes, look)

    return draw


FIGURES: dict[str, tuple[str, Draw, bool]] = {
    "accuracy-time": ("Accuracy over time", _accuracy_along("time", "seconds of training", 1.0), False),
    "accuracy-rounds": ("Accuracy over rounds", _accuracy_along("rounds", "rounds", 1.0), False),
    "accuracy-bytes": ("Accuracy over bytes sent", _accuracy_along("bytes", "MB sent by all devices", 1e6), False),
    "time-to-target": ("Time to target", _time_to_target, True),
    REACHED: ("Runs that reached the target", _target_reached, False),
    PAIRED: ("Rounds of one block, in pairs", _paired_ratio, True),
    "seconds": ("Time of the mean device", _stacked, True),
    BOUND: ("What bounded the rounds", _stacked_shares(bound_shares, BOUNDS, vocabulary.BOUNDS), True),
    WAITED: (
        "What the mean device waited for",
        _stacked_shares(lambda run: run.wait_share_mean, WAITED_FOR, vocabulary.WAITED_FOR),
        True,
    ),
}
"""By name of OF_RUNS: title, what draws it, and whether it has a row per method."""
