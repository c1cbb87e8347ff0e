"""Figures of a run for papers: one per page of a PDF, as vectors with text that stays text, or together in one PNG."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from orchestrator.records.critical.bound_by import Part
from orchestrator.records.shown.gantt import device_rows, length_s, orchestrator_rows
from orchestrator.records.summary import Summary
from orchestrator.records.timeline.timeline import RoundTimeline
from orchestrator.records.words import vocabulary
from orchestrator.records.words.drawing import stride
from orchestrator.records.words.formatting import number, percent
from orchestrator.records.words.palette import BOUNDS, COLOURED_AS, RUNS, WAITED_FOR, WAITS, colour, ordered, style
from orchestrator.records.words.vocabulary import held_by, phase

SIZE_IN = (5.2, 3.2)
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.labelsize": 9,
    "legend.fontsize": 7.5,
    "pdf.fonttype": 42,  # TrueType: journals refuse the default, and text stays searchable
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dfe4ea",
    "axes.axisbelow": True,
}
MOST_BARS = 120

Draw = Callable[[Any], None]
"""Draws one figure into axes."""


def write_pdf(
    path: Path, summary: Summary, phases: Sequence[tuple[int, dict[str, float]]], round: RoundTimeline | None
) -> None:
    """One figure per page. `phases` as for the report's stacked chart, `round`: the one whose Gantt is drawn."""
    with matplotlib.rc_context(STYLE), PdfPages(path, metadata={"Title": summary.run}) as pages:
        for title, draw in _figures(summary, phases, round):
            page = Figure(figsize=SIZE_IN, layout="constrained")
            _fill(page.add_subplot(), title, draw)
            page.text(0.995, 0.003, _marked(summary), ha="right", va="bottom", fontsize=5, color="#66707d")
            pages.savefig(page)


def write_png(
    path: Path, summary: Summary, phases: Sequence[tuple[int, dict[str, float]]], round: RoundTimeline | None
) -> None:
    """All figures on one sheet, 200 dots per inch."""
    figures = _figures(summary, phases, round)
    rows = -(-len(figures) // 2)
    with matplotlib.rc_context(STYLE):
        sheet = Figure(figsize=(2 * SIZE_IN[0], rows * SIZE_IN[1] + 0.4), layout="constrained", dpi=200)
        FigureCanvasAgg(sheet)
        for index, (title, draw) in enumerate(figures):
            _fill(sheet.add_subplot(rows, 2, index + 1), title, draw)
        sheet.suptitle(_marked(summary), fontsize=8, color="#66707d")
        sheet.savefig(path, format="png")


def _marked(summary: Summary) -> str:
    """Facts that every output must show."""
    calibrated = "calibrated" if summary.calibrated else "NOT calibrated"
    held = held_by(summary.enforcement, summary.unlimited, summary.limited_boards)
    costs = f", {summary.costs}" if summary.costs else ""
    share = summary.batches_in_quota_share
    grain = "" if share is None else f", grain {summary.grain}, {percent(share)} of the batches within one period"
    dilation = f"dilation {number(summary.dilation)}"
    rough = summary.disturbed_rounds
    speed = f", speed {summary.speed}" if summary.speed else ""
    host = f", {rough} of {len(summary.rounds)} rounds disturbed by the host" if rough else ""
    return f"{summary.run}: {summary.method}, {held}{costs}, {dilation}, {calibrated}{speed}{grain}{host}"


def _fill(axes: Any, title: str, draw: Draw) -> None:
    draw(axes)
    axes.set_title(title, fontsize=9.5, loc="left", fontweight="bold")


def _figures(
    summary: Summary, phases: Sequence[tuple[int, dict[str, float]]], round: RoundTimeline | None
) -> list[tuple[str, Draw]]:
    elapsed_s = [row.elapsed_s for row in summary.rounds]
    figures: list[tuple[str, Draw]] = [
        ("Accuracy over time", lambda axes: _accuracy(axes, summary, elapsed_s, "seconds of training")),
        ("Accuracy over rounds", lambda axes: _accuracy(axes, summary, range(1, len(summary.rounds) + 1), "rounds")),
        ("What the mean device's time was spent on", lambda axes: _stacked(axes, phases)),
        ("Rounds, and how far the slowest device was behind", lambda axes: _gaps(axes, summary)),
        ("What each device's time was spent on", lambda axes: _shares(axes, summary)),
        ("Stages on the device", lambda axes: _cuts(axes, summary)),
    ]
    if not summary.rounds:
        return figures[:1]
    if summary.bound_by.parts:
        figures.append(("What bounded the rounds", lambda axes: _bounds(axes, summary)))
        figures.append(("What each device waited for", lambda axes: _waits(axes, summary)))
    if round is not None:
        figures.insert(3, (f"Round {round.facts.number + 1}", lambda axes: _gantt(axes, round)))
    return figures


def _accuracy(axes: Any, summary: Summary, xs: Sequence[float], label: str) -> None:
    points = [(x, row.accuracy) for x, row in zip(xs, summary.rounds, strict=True) if row.accuracy is not None]
    marker = "o" if len(points) <= 60 else ""
    axes.plot(
        [x for x, _ in points],
        [100 * y for _, y in points],
        marker=marker,
        ms=3,
        color=RUNS[style(summary.method).colour].light,
    )
    axes.axhline(100 * summary.target_accuracy, ls="--", lw=0.8, color="#888")
    axes.set(xlabel=label, ylabel="test accuracy, %", ylim=(0, 103), xlim=(0, None))


def _stacked(axes: Any, phases: Sequence[tuple[int, dict[str, float]]]) -> None:
    shown = phases[:: stride(len(phases), MOST_BARS)]
    parts = [(name, phase(name), [sums.get(name, 0.0) for _, sums in shown]) for name in _large(shown)]
    pile(axes.bar, [number for number, _ in shown], 0.85 * stride(len(phases), MOST_BARS), parts, linewidth=0)
    axes.set(xlabel="round", ylabel="seconds")
    _whole_numbers(axes)
    _legend(axes)


def _large(shown: Sequence[tuple[int, dict[str, float]]]) -> list[str]:
    """Names with at least 0.5 % of the time; less cannot be seen."""
    sums: dict[str, float] = {}
    for _, one in shown:
        for name, seconds in one.items():
            sums[name] = sums.get(name, 0.0) + seconds
    return ordered({name for name, seconds in sums.items() if seconds >= 0.005 * sum(sums.values())})


def _gaps(axes: Any, summary: Summary) -> None:
    rows = sorted(summary.rounds, key=lambda row: row.number)
    for cause, like in COLOURED_AS.items():
        own = [(row.number, row.straggler_gaps_s) for row in rows if row.straggler_why == cause]
        if own:
            axes.bar(
                [n for n, _ in own], [g for _, g in own], color=colour(like), label=f"gap: {vocabulary.cause(cause)}"
            )
    axes.plot([row.number for row in rows], [row.round_s for row in rows], color="#555", lw=1.2, label="round")
    axes.set(xlabel="round", ylabel="seconds", ylim=(0, None))
    _whole_numbers(axes)
    _legend(axes)


def _bounds(axes: Any, summary: Summary) -> None:
    """Seconds of every round's critical path by kind of bound."""
    known = [(row.number, row.round_bounds.parts) for row in summary.rounds if row.round_bounds is not None]
    rounds = [(number, seconds_by_bound(parts)) for number, parts in sorted(known, key=lambda pair: pair[0])]
    shown, width = rounds[:: stride(len(rounds), MOST_BARS)], 0.85 * stride(len(rounds), MOST_BARS)
    heights = {what: [sums.get(what, 0.0) for _, sums in shown] for what in BOUNDS}
    parts = [(BOUNDS[what], vocabulary.BOUNDS[what], each) for what, each in heights.items() if any(each)]
    pile(axes.bar, [number for number, _ in shown], width, parts, linewidth=0)
    axes.set(xlabel="round", ylabel="seconds")
    _whole_numbers(axes)
    _legend(axes)


def _waits(axes: Any, summary: Summary) -> None:
    """Seconds that every device waited in all rounds, by cause."""
    devices = {name: device.wait_s for name, device in summary.devices.items() if device.wait_s is not None}
    widths = {cause: [waited.get(cause, 0.0) for waited in devices.values()] for cause in WAITED_FOR}
    parts = [(WAITED_FOR[cause], vocabulary.WAITED_FOR[cause], each) for cause, each in widths.items() if any(each)]
    pile(axes.barh, range(len(devices)), 0.75, parts, linewidth=0)
    _by_device(axes, list(devices))
    axes.set(xlabel="seconds of all rounds", xlim=(0, None))
    _legend(axes)


def _gantt(axes: Any, timeline: RoundTimeline) -> None:
    rows = device_rows(timeline) + orchestrator_rows(timeline)
    for index, row in enumerate(rows):
        for bar in row.bars:
            axes.barh(index, bar.length_s, 0.75, bar.start_s, linewidth=0, **look_of(bar.name))
    _by_device(axes, [row.label for row in rows])
    axes.set(xlabel="seconds since the start of the round", xlim=(0, length_s(timeline.facts)))
    names = ordered({bar.name for row in rows for bar in row.bars})
    _legend(axes, [Patch(label=phase(name), linewidth=0, **look_of(name)) for name in names])


def _shares(axes: Any, summary: Summary) -> None:
    phases = {name: device.phase_s for name, device in summary.devices.items()}
    names = ordered({name for sums in phases.values() for name in sums})
    whole = {device: sum(sums.values()) or 1.0 for device, sums in phases.items()}
    shares = {name: [100 * sums.get(name, 0.0) / whole[device] for device, sums in phases.items()] for name in names}
    pile(axes.barh, range(len(phases)), 0.75, [(name, phase(name), shares[name]) for name in names], linewidth=0)
    _by_device(axes, list(phases))
    axes.set(xlabel="% of the time of all rounds", xlim=(0, 100))
    _legend(axes)


def _cuts(axes: Any, summary: Summary) -> None:
    half, last = 0.5, max(row.number for row in summary.rounds)
    cuts = cut_columns(summary)
    image = axes.imshow(
        cuts, aspect="auto", interpolation="nearest", extent=(half, last + half, len(cuts) - half, -half)
    )
    _by_device(axes, list(summary.devices), inverted=False)
    axes.grid(False)
    axes.set(xlabel="round")
    _whole_numbers(axes)
    axes.figure.colorbar(image, ax=axes, label="stages")


def cut_columns(summary: Summary) -> list[list[float]]:
    """By device, the cut in every round in the order of the numbers; NaN where it had none, or where the round did not
    finish. Rounds of an asynchronous method end in another order."""
    rows = []
    numbers = [row.number for row in summary.rounds]
    for device in summary.devices.values():
        row = [float("nan")] * max(numbers)
        for place, cut in zip(numbers, device.cut, strict=True):
            row[place - 1] = float("nan") if cut is None else cut
        rows.append(row)
    return rows


Parts = Iterable[tuple[str, str, Sequence[float]]]
"""Phase that has the colour, label, and lengths of the bars."""


def pile(bars: Callable[..., object], places: Sequence[int], width: float, parts: Parts, **more: Any) -> list[float]:
    """Draw bars one after the other at each place. Returns where they end. `bars`: `axes.bar` or `axes.barh`."""
    ends = [0.0] * len(places)
    for like, label, lengths in parts:
        bars(places, lengths, width, ends, label=label, **more, **look_of(like))
        ends = [end + length for end, length in zip(ends, lengths, strict=True)]
    return ends


def look_of(name: str) -> dict[str, Any]:
    """Colour of a phase, and the hatching of a wait, for matplotlib."""
    return {"facecolor": colour(name), "hatch": "////" if name in WAITS else None, "edgecolor": "white"}


def _by_device(axes: Any, devices: list[str], inverted: bool = True) -> None:
    step = stride(len(devices), 25)
    axes.set_yticks(range(0, len(devices), step), devices[::step], fontsize=7.5)
    axes.grid(False, axis="y")
    if inverted:
        axes.set_ylim(len(devices) - 0.5, -0.5)


def _whole_numbers(axes: Any) -> None:
    axes.xaxis.get_major_locator().set_params(integer=True)


def _legend(axes: Any, handles: list[Patch] | None = None) -> None:
    """Below the axes, so that it covers nothing."""
    about: dict[str, Any] = {"handles": handles} if handles is not None else {}
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, -0.2),
        ncols=4,
        frameon=False,
        handlelength=1.0,
        columnspacing=1.0,
        **about,
    )


# ---- what bounded rounds, and what devices waited for, as shares ----


def seconds_by_bound(parts: Sequence[Part]) -> dict[str, float]:
    """Seconds by kind of bound: those of all devices together."""
    sums: dict[str, float] = {}
    for part in parts:
        sums[part.what] = sums.get(part.what, 0.0) + part.seconds
    return sums


def bound_shares(summary: Summary) -> dict[str, float]:
    """Shares of a run's rounds by kind of bound; empty where they are not known."""
    sums = seconds_by_bound(summary.bound_by.parts)
    whole = sum(sums.values())
    return {what: length / whole for what, length in sums.items()} if whole else {}


def mean_shares(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean over the runs that have any."""
    known = [run for run in runs if run]
    kinds = {kind for run in known for kind in run}
    return {kind: sum(run.get(kind, 0.0) for run in known) / len(known) for kind in kinds}
