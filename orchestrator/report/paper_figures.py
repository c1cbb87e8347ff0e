"""Figures for papers of several runs: one curve or bar per method, with a band or an interval over its seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

import matplotlib
import msgspec
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation

from edgebed.errors import UsageError
from orchestrator.records.compare import groups
from orchestrator.records.compare.comparison import compare
from orchestrator.records.compare.curves import Along, band, curve
from orchestrator.records.compare.groups import Estimate, estimate
from orchestrator.records.compare.paired import Paired, paired
from orchestrator.records.summary import Summary
from orchestrator.records.types import SIMULATED
from orchestrator.records.words import vocabulary
from orchestrator.records.words.formatting import accuracy, percent, seconds
from orchestrator.records.words.palette import BOUNDS, DASHES, RUNS, WAITED_FOR, ordered, style
from orchestrator.records.words.vocabulary import phase
from orchestrator.report.figures import STYLE, bound_shares, mean_shares, pile
from orchestrator.report.look import Look

WIDTH_IN: dict[str, float] = {"column": 3.4, "page": 7.0}
"""Inches of a column and of a page of a two-column paper."""

POINTS: dict[str, float] = {"column": 7.0, "page": 8.5}
"""Size of the text in points; figures are made at their final size and need no scaling."""

NOTE_POINTS = 5.0
"""Size of the note at the bottom."""

MARKERS = "os^Dvx*P"

SMALL_SHARE = 0.01
"""A kind of time with a smaller share of every method's time is drawn as `other`."""

SPREAD_TEXT = {
    "range": "least to greatest of the seeds",
    "deviation": "one standard deviation over the seeds",
    "interval": "95 % interval of the mean over the seeds (Student's t)",
}


class Series(msgspec.Struct, frozen=True):
    """The runs of one method, with its colour, dash and marker. `pair`: its ratio to the last run's method, where their
    rounds alternated."""

    label: str
    runs: list[Summary]
    colour: str
    dash: Any
    marker: str
    pair: Paired | None = None


PAIRED, BOUND, WAITED = "paired-ratio", "bounds", "waits"
"""Figures that not all runs have: those of interleaved runs, and those whose records tell what bounded the rounds."""

Draw = Callable[[Any, Sequence[Series], Look], None]


def write_figures(summaries: Sequence[Summary], paths: Sequence[Path], only: str | None, look: Look) -> list[Path]:
    """Write the figures of some runs, and return the files written.

    Args:
        paths: files that end in .pdf, .svg or .png. A PDF holds one figure per page. SVG and PNG hold one figure; where
            there are several, the figure's name is added to the name of the file.
        only: the name of one figure; None: all figures of FIGURES.

    Raises:
        UsageError: an unknown figure or ending of a file.
    """
    _check(paths, only)
    series = _series(summaries)
    chosen = [only] if only is not None else [name for name in FIGURES if _has_data(name, series)]
    written = []
    with matplotlib.rc_context(_style(look)):
        for path in paths:
            if path.suffix == ".pdf":
                _write_pdf(path, chosen, series, look, _provenance(summaries))
                written.append(path)
                continue
            for name in chosen:
                file = path if len(chosen) == 1 else path.with_stem(f"{path.stem}-{name}")
                _write_one(file, name, series, look, _provenance(summaries))
                written.append(file)
    return written


def _has_data(name: str, series: Sequence[Series]) -> bool:
    if name == PAIRED:
        return any(one.pair is not None for one in series)
    shares: dict[str, Callable[[Summary], dict[str, float]]]
    shares = {BOUND: bound_shares, WAITED: lambda run: run.wait_share_mean}
    of = shares.get(name)
    return of is None or any(of(run) for one in series for run in one.runs)


def _check(paths: Sequence[Path], only: str | None) -> None:
    if only is not None and only not in FIGURES:
        raise UsageError(f"no figure {only!r}", hint=f"one of {', '.join(FIGURES)}")
    for path in paths:
        if path.suffix not in (".pdf", ".svg", ".png"):
            raise UsageError(f"{path}: not a name of a PDF, SVG or PNG file", hint="end it in .pdf, .svg or .png")


def _series(summaries: Sequence[Summary]) -> list[Series]:
    """Groups of runs in the order of their first runs. The name of the experiment is added where two share a method,
    and "simulated" where others are real."""
    found = list(groups.by_key(summaries).values())
    mixed = len({run.enforcement == SIMULATED for run in summaries}) > 1
    names = [groups.named(runs[0]) if mixed else runs[0].method for runs in found]
    labels = [
        name if names.count(name) == 1 else f"{name}, {runs[0].experiment}"
        for name, runs in zip(names, found, strict=True)
    ]
    pairs = {pair.method: pair for pair in paired(summaries)}
    return [
        _one(label, runs, [other[0].method for other in found[:i]].count(runs[0].method), pairs)
        for i, (label, runs) in enumerate(zip(labels, found, strict=True))
    ]


def _one(label: str, runs: list[Summary], before: int, pairs: Mapping[str, Paired]) -> Series:
    """In the colour of the method; `before`: how many groups of the same method there are already."""
    own = style(runs[0].method, before)
    dash, marker = DASHES[own.dash], MARKERS[own.marker]
    pair = pairs.get(groups.named(runs[0]))
    return Series(label, runs, RUNS[own.colour].light, (0, dash) if dash else "-", marker, pair)


def _style(look: Look) -> dict[Any, Any]:
    size = POINTS[look.width]
    return STYLE | {
        "font.size": size,
        "axes.labelsize": size,
        "axes.titlesize": size + 1,
        "xtick.labelsize": size - 0.5,
        "ytick.labelsize": size - 0.5,
        "legend.fontsize": size - 0.5,
        "lines.linewidth": 1.2,
        "svg.fonttype": "none",  # text stays text
        "svg.hashsalt": "edgebed",  # the same runs give the same file
        "hatch.linewidth": 0.6,
    }


def _provenance(summaries: Sequence[Summary]) -> dict[str, str]:
    """What stands in the file: the runs, and what makes their figures doubtful or not comparable."""
    return {"runs": ", ".join(s.run for s in summaries), "notes": "; ".join(compare(summaries).notes)}


def _write_pdf(path: Path, names: Sequence[str], series: Sequence[Series], look: Look, about: dict[str, str]) -> None:
    metadata = {"Title": "Edgebed: runs compared", "Subject": about["notes"], "Keywords": about["runs"]}
    with PdfPages(path, metadata=metadata) as pages:
        for name in names:
            pages.savefig(_figure(name, series, look, about))


def _write_one(path: Path, name: str, series: Sequence[Series], look: Look, about: dict[str, str]) -> None:
    text = f"{about['runs']}; {about['notes']}"
    metadata = {"Description": text, "Date": None} if path.suffix == ".svg" else {"Description": text}
    _figure(name, series, look, about).savefig(path, format=path.suffix[1:], dpi=300, metadata=metadata)


def _figure(name: str, series: Sequence[Series], look: Look, about: dict[str, str]) -> Figure:
    """One figure. Doubts about the runs stand in lines of their own below it, whatever the look."""
    title, height, draw = FIGURES[name]
    figure = Figure(figsize=(WIDTH_IN[look.width], WIDTH_IN[look.width] * height), layout="constrained")
    FigureCanvasAgg(figure)
    _add_note(figure, about["notes"])
    axes = figure.add_subplot()
    draw(axes, series, look)
    if look.title:
        axes.set_title(title, loc="left", fontweight="bold")
    return figure


def _add_note(figure: Figure, notes: str) -> None:
    """Write the doubts at the bottom, and keep the layout out of their lines."""
    if not notes:
        return
    width, height = figure.get_size_inches() * 72
    lines = wrap(f"Note: {notes}", int(width / (0.55 * NOTE_POINTS)))
    share = (len(lines) + 0.5) * 1.25 * NOTE_POINTS / height
    figure.text(0.01, 0.005, "\n".join(lines), fontsize=NOTE_POINTS, color="#66707d", va="bottom", linespacing=1.1)
    figure.set_layout_engine("constrained", rect=(0, share, 1, 1 - share))


# ---- curves ----


def _accuracy_along(along: Along, label: str, scale: float) -> Draw:
    """Draws mean accuracy and band of each method along an axis; x values are divided by `scale`."""

    def draw(axes: Any, series: Sequence[Series], look: Look) -> None:
        for one in series:
            _add_curve(axes, one, along, scale, look)
        targets = sorted({run.target_accuracy for one in series for run in one.runs})
        for target in targets:
            axes.axhline(100 * target, ls=(0, (1, 2)), lw=0.8, color="#666", zorder=1)
        axes.set(xlabel=label, ylabel="test accuracy, %", xlim=(0, None))
        if along == "rounds":
            axes.xaxis.get_major_locator().set_params(integer=True)
        _set_accuracy_limits(axes)
        _legend(axes, 3 if look.width == "column" else 6, _band_note(series, look))

    return draw


def _add_curve(axes: Any, one: Series, along: Along, scale: float, look: Look) -> None:
    found = band([curve(run, along) for run in one.runs], look.spread)
    if found is None:
        return
    xs = [x / scale for x in found.x]
    axes.plot(
        xs,
        [100 * y for y in found.mean],
        color=one.colour,
        ls=one.dash,
        marker=one.marker,
        ms=3,
        markevery=max(1, len(xs) // 8),
        label=one.label,
    )
    if len(one.runs) > 1:
        low, high = ([100 * y for y in side] for side in (found.low, found.high))
        axes.fill_between(xs, low, high, color=one.colour, alpha=0.18, lw=0)


def _set_accuracy_limits(axes: Any) -> None:
    """From the data, at most 0 to 100 %, so that curves near the top can be told apart."""
    low, high = axes.get_ylim()
    axes.set_ylim(max(0.0, low), min(101.0, high))


def _band_note(series: Sequence[Series], look: Look) -> str:
    return f"band: {SPREAD_TEXT[look.spread]}" if any(len(one.runs) > 1 for one in series) else ""


# ---- bars ----


def _time_to_target(axes: Any, series: Sequence[Series], look: Look) -> None:
    """One bar per method with the 95 % interval over its seeds. A method that never got there has a text instead."""
    for index, one in enumerate(series):
        times = [run.time_to_target_s for run in one.runs if run.time_to_target_s is not None]
        found = estimate(times)
        if found.mean is not None:
            axes.barh(index, found.mean, 0.6, color=one.colour, xerr=_whiskers(found), ecolor="#333", capsize=2)
        axes.annotate(
            _reached(found, len(times), one.runs),
            (found.high or found.mean or 0.0, index),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=POINTS[look.width] - 1,
        )
    _by_method(axes, series)
    targets = sorted({run.target_accuracy for one in series for run in one.runs})
    axes.set(xlabel=f"seconds to {' or '.join(percent(target, 0) for target in targets)} test accuracy")
    axes.margins(x=0.25)
    axes.set_xlim(0, None)


def _whiskers(found: Estimate) -> list[list[float]] | None:
    """Lengths of the interval's two sides."""
    if found.mean is None or found.low is None or found.high is None:
        return None
    return [[found.mean - found.low], [found.high - found.mean]]


def _reached(found: Estimate, reached: int, runs: Sequence[Summary]) -> str:
    if found.mean is None:
        best = max((run.best_accuracy or 0.0 for run in runs), default=0.0)
        return f"not reached (best {accuracy(best)})"
    return seconds(found.mean) if reached == len(runs) else f"{seconds(found.mean)}, {reached} of {len(runs)} runs"


def _paired_ratio(axes: Any, series: Sequence[Series], look: Look) -> None:
    """One point per method with the 95 % interval of its rounds ÷ those of the baseline in the same block."""
    for index, one in enumerate(series):
        if one.pair is not None:
            found = one.pair.round_ratio
            axes.errorbar(found.mean, index, xerr=_whiskers(found), fmt=one.marker, color=one.colour, ms=4, capsize=2)
    axes.axvline(1, ls=(0, (1, 2)), lw=0.8, color="#666", zorder=1)
    _by_method(axes, series)
    base = next((one.pair.baseline for one in series if one.pair is not None), "the last run")
    axes.set(xlabel=f"seconds of a round ÷ seconds of {base}'s in the same block")
    axes.margins(x=0.15)


def _stacked(axes: Any, series: Sequence[Series], look: Look) -> None:
    """Seconds of the mean device by what they were spent on, over the whole run, mean over the seeds."""
    sums = [_mean_phases(one.runs) for one in series]
    parts = [(name, phase(name), [each.get(name, 0.0) for each in sums]) for name in _order(sums)]
    left = pile(axes.barh, range(len(series)), 0.65, parts)
    _by_method(axes, series)
    axes.set(xlabel="seconds until the end of the run", xlim=(0, 1.03 * max(left, default=1.0) or 1.0))
    _legend(axes, 3 if look.width == "column" else 6)


def _mean_phases(runs: Sequence[Summary]) -> dict[str, float]:
    """Seconds by kind of time, mean over the devices of each run and over the runs."""
    found: dict[str, float] = {}
    for run in runs:
        for device in run.devices.values():
            for name, length in device.phase_s.items():
                found[name] = found.get(name, 0.0) + length / len(run.devices) / len(runs)
    return found


def _stacked_shares(
    of: Callable[[Summary], dict[str, float]], like: Mapping[str, str], words: Mapping[str, str]
) -> Draw:
    """Draws shares of the rounds by kind, mean over the seeds.

    Args:
        of: shares of one run by kind.
        like: by kind, the phase that has the same colour.
        words: by kind.
    """

    def draw(axes: Any, series: Sequence[Series], look: Look) -> None:
        shares = [mean_shares([of(run) for run in one.runs]) for one in series]
        drawn = [kind for kind in like if any(each.get(kind, 0.0) >= SMALL_SHARE for each in shares)]
        parts = [(like[kind], words[kind], [100 * each.get(kind, 0.0) for each in shares]) for kind in drawn]
        pile(axes.barh, range(len(series)), 0.65, parts)
        _by_method(axes, series)
        axes.set(xlabel="% of the time of all rounds", xlim=(0, 100))
        _legend(axes, 3 if look.width == "column" else 6)

    return draw


def _order(sums: list[dict[str, float]]) -> list[str]:
    """Names of the kinds of time to draw. Small ones are added up as `other`, in place."""
    kept = {n for each in sums for n, length in each.items() if length >= SMALL_SHARE * sum(each.values())}
    for each in sums:
        small = [name for name in each if name not in kept]
        if small:
            each["other"] = sum(each.pop(name) for name in small)
    return [*ordered(kept), *(["other"] if any("other" in each for each in sums) else [])]


def _by_method(axes: Any, series: Sequence[Series]) -> None:
    axes.set_yticks(range(len(series)), [one.label for one in series])
    axes.set_ylim(len(series) - 0.5, -0.5)
    axes.grid(False, axis="y")


def _legend(axes: Any, columns: int, note: str = "") -> None:
    """Below the axis' label, so that it covers nothing."""
    below = ScaledTranslation(0, -3.4 * axes.xaxis.label.get_size() / 72, axes.figure.dpi_scale_trans)
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        bbox_transform=axes.transAxes + below,
        borderaxespad=0,
        ncols=columns,
        frameon=False,
        handlelength=2.0,
        columnspacing=1.0,
        title=note or None,
        title_fontsize=axes.xaxis.label.get_size() - 1.5,
    )


FIGURES: dict[str, tuple[str, float, Draw]] = {
    "accuracy-time": ("Accuracy over time", 0.75, _accuracy_along("time", "seconds of training", 1.0)),
    "accuracy-rounds": ("Accuracy over rounds", 0.75, _accuracy_along("rounds", "rounds", 1.0)),
    "accuracy-bytes": ("Accuracy over bytes sent", 0.75, _accuracy_along("bytes", "MB sent by all devices", 1e6)),
    "time-to-target": ("Time to target", 0.55, _time_to_target),
    PAIRED: ("Rounds of one block, in pairs", 0.45, _paired_ratio),
    "seconds": ("Time of the mean device", 0.75, _stacked),
    BOUND: ("What bounded the rounds", 0.6, _stacked_shares(bound_shares, BOUNDS, vocabulary.BOUNDS)),
    WAITED: (
        "What the mean device waited for",
        0.6,
        _stacked_shares(lambda run: run.wait_share_mean, WAITED_FOR, vocabulary.WAITED_FOR),
    ),
}
"""By name: title, height ÷ width, and what draws it."""
