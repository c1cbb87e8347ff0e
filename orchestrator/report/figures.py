"""Figures of one run for papers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from orchestrator.records.compare.comparison import compare, headline
from orchestrator.records.compare.curves import curve
from orchestrator.records.critical.bound_by import Part
from orchestrator.records.summary import Summary
from orchestrator.records.words import vocabulary
from orchestrator.records.words.drawing import stride
from orchestrator.records.words.formatting import number, percent, share
from orchestrator.records.words.palette import BOUNDS, COLOURED_AS, RUNS, WAITED_FOR, WAITS, colour, ordered, style
from orchestrator.records.words.vocabulary import held_by, phase
from orchestrator.report.look import BOUND, OF_ONE_RUN, WAITED, Look, check
from orchestrator.report.sheet import About, Plot, by_round, label_x, name_rows, rows_in, write

MOST_BARS = 120

ROW_IN = 0.15
"""Height of a device's bar and of the room around it."""

LEAST = 0.005
"""A part with a smaller share of the whole figure is not drawn: it cannot be seen."""


Parts = Iterable[tuple[str, str, Sequence[float]]]
"""Phase that has the colour, label, and lengths of the bars."""


class Drawn(msgspec.Struct, frozen=True):
    """What figures of a run show.

    Attributes:
        phases: per finished round its number and the mean device's seconds by name.
        view: the round whose Gantt is drawn, as `round_view` has it; None: no round.
    """

    summary: Summary
    phases: Sequence[tuple[int, dict[str, float]]] = ()
    view: dict[str, Any] | None = None


def write_figures(drawn: Drawn, paths: Sequence[Path], only: str | None, look: Look) -> list[Path]:
    """Write the figures of a run and their captions (`sheet.write`), and return the files written.

    Raises:
        UsageError: an unknown figure or ending of a file.
    """
    check(paths, only, OF_ONE_RUN)
    summary = drawn.summary
    about = About(summary.run, [summary.run], [_marked(summary), *compare([summary]).notes], headline([summary]))
    return write(paths, plots(drawn, only), look, about)


def plots(drawn: Drawn, only: str | None = None) -> list[Plot]:
    """The figures of a run, as `write_figures` draws them."""
    chosen = [only] if only is not None else [name for name in OF_ONE_RUN if _has_data(name, drawn)]
    return [_plot(name, drawn) for name in chosen]


def _plot(name: str, drawn: Drawn) -> Plot:
    title, draw, by_device = FIGURES[name]
    count = len(drawn.summary.devices) + 2 * (name == "round")
    if name == "round" and drawn.view is not None:
        title = f"Round {drawn.view['round']}"
    return Plot(name, title, partial(draw, drawn), height_in=rows_in(count, ROW_IN) if by_device else None)


def _has_data(name: str, drawn: Drawn) -> bool:
    """Whether a figure would show anything: cuts, for instance, only where a method has several."""
    summary = drawn.summary
    if not summary.rounds:
        return name == "accuracy-time"
    if name == "cuts":
        return len({cut for device in summary.devices.values() for cut in device.cut}) > 1
    if name == "round":
        return drawn.view is not None
    return name not in (BOUND, WAITED) or bool(summary.bound_by.parts)


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


# ---- curves and rounds ----


def _accuracy(along: Any, label: str) -> Callable[[Drawn, Any, Look], None]:
    def draw(drawn: Drawn, axes: Any, look: Look) -> None:
        summary, points = drawn.summary, curve(drawn.summary, along)
        line = {"marker": "o" if len(points) <= 60 else "", "ms": 3, "color": RUNS[style(summary.method).colour]}
        axes.plot([x for x, _ in points], [100 * y for _, y in points], label=summary.method, **line)
        target = summary.target_accuracy
        axes.axhline(100 * target, ls="--", lw=0.8, color="#888", label=f"target {share(target)}")
        axes.set(ylabel="test accuracy, %", ylim=(0, 103), xlim=(0, None))
        label_x(axes, label, look)
        if along == "rounds":
            axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)

    return draw


def _stacked(drawn: Drawn, axes: Any, look: Look) -> None:
    step = stride(len(drawn.phases), MOST_BARS)
    shown = drawn.phases[::step]
    parts = [
        (name, phase(name), [sums.get(name, 0.0) for _, sums in shown])
        for name in ordered({n for _, sums in shown for n in sums})
    ]
    _by_round(axes, [n for n, _ in shown], step, parts, look)


def _by_round(axes: Any, numbers: Sequence[int], step: int, parts: Parts, look: Look) -> None:
    """A bar per round; of a long run every n-th, and as wide as n."""
    pile(axes.bar, numbers, 0.85 * step, _large(parts), linewidth=0)
    axes.set(ylabel="seconds")
    by_round(axes, numbers, look)


def _gaps(drawn: Drawn, axes: Any, look: Look) -> None:
    rows = sorted(drawn.summary.rounds, key=lambda row: row.number)
    for cause, like in COLOURED_AS.items():
        own = [(row.number, row.straggler_gaps_s) for row in rows if row.straggler_why == cause]
        if own:
            label = f"gap: {vocabulary.cause(cause)}"
            axes.bar([n for n, _ in own], [g for _, g in own], label=label, linewidth=0, **look_of(like))
    dot = "o" if len(rows) == 1 else None
    axes.plot([r.number for r in rows], [r.round_s for r in rows], marker=dot, color="#555", lw=1.2, label="round")
    axes.set(ylabel="seconds", ylim=(0, None))
    by_round(axes, [row.number for row in rows], look)


def _bounds(drawn: Drawn, axes: Any, look: Look) -> None:
    """Seconds of every round's critical path by kind of bound."""
    known = [(row.number, row.round_bounds.parts) for row in drawn.summary.rounds if row.round_bounds is not None]
    rounds = [(number, seconds_by_bound(parts)) for number, parts in sorted(known, key=lambda pair: pair[0])]
    step = stride(len(rounds), MOST_BARS)
    shown = rounds[::step]
    parts = [(like, vocabulary.BOUNDS[what], [s.get(what, 0.0) for _, s in shown]) for what, like in BOUNDS.items()]
    _by_round(axes, [n for n, _ in shown], step, parts, look)


# ---- a row per device ----


def _by_device(axes: Any, names: Sequence[str], parts: Parts, label: str, look: Look) -> None:
    pile(axes.barh, range(len(names)), 0.75, _large(parts), linewidth=0)
    name_rows(axes, names, look, lines=1)
    label_x(axes, label, look, xlim=(0, None))


def _waits(drawn: Drawn, axes: Any, look: Look) -> None:
    """Seconds that every device waited in all rounds, by cause."""
    devices = {name: device.wait_s for name, device in drawn.summary.devices.items() if device.wait_s is not None}
    parts = [
        (like, vocabulary.WAITED_FOR[cause], [waited.get(cause, 0.0) for waited in devices.values()])
        for cause, like in WAITED_FOR.items()
    ]
    _by_device(axes, list(devices), parts, "seconds of all rounds", look)


def _gantt(drawn: Drawn, axes: Any, look: Look) -> None:
    """The same bars as on the pages."""
    assert drawn.view is not None
    rows = {name: device["bars"] for name, device in drawn.view["devices"].items()}
    rows |= {"server halves": drawn.view["server"], "orchestrator": drawn.view["own"]}
    for index, bars in enumerate(rows.values()):
        for name, start, end, _ in bars:
            axes.barh(index, end - start, 0.75, start, linewidth=0, **look_of(name))
    for name in ordered({bar[0] for bars in rows.values() for bar in bars}):
        axes.barh(0, 0, label=phase(name), linewidth=0, **look_of(name))
    name_rows(axes, list(rows), look, lines=1)
    label_x(axes, "seconds since the start of the round", look, xlim=(0, drawn.view["length_s"]))


def _shares(drawn: Drawn, axes: Any, look: Look) -> None:
    phases = {name: device.phase_s for name, device in drawn.summary.devices.items()}
    whole = {device: sum(sums.values()) or 1.0 for device, sums in phases.items()}
    parts = [
        (name, phase(name), [100 * sums.get(name, 0.0) / whole[device] for device, sums in phases.items()])
        for name in ordered({name for sums in phases.values() for name in sums})
    ]
    _by_device(axes, list(phases), parts, "% of the time of all rounds", look)
    axes.set_xlim(0, 100)


def _cuts(drawn: Drawn, axes: Any, look: Look) -> None:
    """Stages on each device in each round, the darker the more."""
    rows = cut_columns(drawn.summary)
    known = sorted({cut for row in rows for cut in row if cut == cut})
    for cut in known:
        for index, row in enumerate(rows):
            spans = [(place - 0.5, 1.0) for place, own in enumerate(row, 1) if own == cut]
            axes.broken_barh(spans, (index - 0.4, 0.8), facecolor=blue(cut / known[-1]), linewidth=0)
        axes.barh(0, 0, label=f"{cut:g} stage{'s' if cut > 1 else ''}", color=blue(cut / known[-1]))
    name_rows(axes, list(drawn.summary.devices), look, lines=1)
    by_round(axes, [row.number for row in drawn.summary.rounds], look)


def blue(strength: float) -> tuple[float, float, float]:
    """From pale to dark, as pages draw cuts."""
    return tuple(1 - strength * (1 - part) for part in (0.12, 0.37, 0.66))  # type: ignore[return-value]


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


def _large(parts: Parts) -> Parts:
    """Those that can be seen."""
    parts = list(parts)
    whole = sum(sum(lengths) for _, _, lengths in parts)
    return [part for part in parts if sum(part[2]) > LEAST * whole]


FIGURES: dict[str, tuple[str, Callable[[Drawn, Any, Look], None], bool]] = {
    "accuracy-time": ("Accuracy over time", _accuracy("time", "seconds of training"), False),
    "accuracy-rounds": ("Accuracy over rounds", _accuracy("rounds", "rounds"), False),
    "seconds": ("What the mean device's time was spent on", _stacked, False),
    "round": ("One round", _gantt, True),
    "gaps": ("Rounds, and how far the slowest device was behind", _gaps, False),
    "devices": ("What each device's time was spent on", _shares, True),
    "cuts": ("Stages on the device", _cuts, True),
    BOUND: ("What bounded the rounds", _bounds, False),
    WAITED: ("What each device waited for", _waits, True),
}
"""By name of OF_ONE_RUN: title, what draws it, and whether it has a row per device."""


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
