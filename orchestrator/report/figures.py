"""Figures of one run for papers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from orchestrator.records.compare.comparison import compare, headline
from orchestrator.records.compare.curves import Along
from orchestrator.records.summary import Summary
from orchestrator.records.words.formatting import number, percent
from orchestrator.records.words.palette import COLOURED_AS, RUNS, WAITS, colour
from orchestrator.records.words.vocabulary import held_by
from orchestrator.report import charts
from orchestrator.report.charts import Figure
from orchestrator.report.look import BOUND, OF_ONE_RUN, WAITED, Look, check
from orchestrator.report.sheet import About, Plot, by_round, label_x, name_rows, rows_in, write

MOST_BARS, MOST_MARKED = 120, 60
"""Rounds with a bar, and rounds with a marker on a line."""

ROW_IN = 0.15
"""Height of a device's bar and of the room around it."""

LEAST = 0.005
"""A part with a smaller share of the whole figure is not named: it cannot be seen."""


class Drawn(msgspec.Struct, frozen=True):
    """What figures of a run show."""

    summary: Summary
    # per finished round its number and the mean device's seconds by name
    phases: Sequence[tuple[int, dict[str, float]]] = ()
    view: dict[str, Any] | None = None  # the round whose Gantt is drawn, as `round_view` has it; None: no round


def write_figures(drawn: Drawn, paths: Sequence[Path], only: str | None, look: Look) -> list[Path]:
    """Write the figures of a run and their captions (`sheet.write`), and return the files written. Raises UsageError:
    an unknown figure or ending of a file."""
    check(paths, only, OF_ONE_RUN)
    summary = drawn.summary
    about = About(summary.run, [summary.run], [_marked(summary), *compare([summary]).notes], headline([summary]))
    return write(paths, plots(drawn, only), look, about)


def plots(drawn: Drawn, only: str | None = None) -> list[Plot]:
    """The figures of a run, as `write_figures` draws them."""
    chosen = [only] if only is not None else [name for name in OF_ONE_RUN if _has_data(name, drawn)]
    return [_plot(name, drawn) for name in chosen]


def _plot(name: str, drawn: Drawn) -> Plot:
    figure = FIGURES[name](drawn)
    height_in = rows_in(len(figure["rows"]), ROW_IN) if figure["kind"] == "rows" else None
    return Plot(name, figure["title"], partial(paint, figure), height_in=height_in)


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


# ---- drawing what pages draw too (`charts.py`) ----


def paint(figure: Figure, axes: Any, look: Look) -> None:
    """Draw a figure that pages draw with `charts.js` or `rows.js`."""
    (_rows if figure["kind"] == "rows" else _chart)(figure, axes, look)


def _chart(figure: Figure, axes: Any, look: Look) -> None:
    """Bars on each other, and lines; shares are in percent."""
    label, form = figure["y"][:2]
    scale = 100 if form == "share" else 1
    places = sorted({p[0] for one in figure["series"] for p in one["points"]})
    wide = 0.85 * min((b - a for a, b in pairwise(places)), default=1.0)
    whole = sum(_length(p) for one in figure["series"] if one.get("bars") for p in one["points"])
    for one in figure["series"]:
        points = [p for p in one["points"] if p[1] is not None]
        if not one.get("bars"):
            line = {"marker": "o" if len(points) <= MOST_MARKED else "", "ms": 3, "color": colour_of(one["cls"])}
            axes.plot([p[0] for p in points], [scale * p[1] for p in points], label=one["name"], **line)
        else:
            below, seen = [_base(p) for p in points], sum(map(_length, points)) > LEAST * whole
            axes.bar(
                [p[0] for p in points],
                list(map(_length, points)),
                wide,
                below,
                **_bar(one["cls"], one["name"] if seen else None),
            )
    if goal := figure.get("line"):
        axes.axhline(scale * goal["y"], ls="--", lw=0.8, color="#888", label=goal["label"])
    axes.set(ylabel=f"{label}, %" if scale > 1 else label, ylim=(0, 103 if scale > 1 else None))
    if figure.get("whole"):
        by_round(axes, places, look)
    else:
        label_x(axes, figure["x"][0], look, xlim=(0, None))
        axes.xaxis.get_major_locator().set_params(integer=figure["x"][1] == "whole", min_n_ticks=1)


def _base(point: Sequence[Any]) -> float:
    return point[5] if len(point) > 5 else 0.0


def _length(point: Sequence[Any]) -> float:
    return (point[1] or 0.0) - _base(point)


def _rows(figure: Figure, axes: Any, look: Look) -> None:
    """A row of bars per device."""
    scale = 100 if figure["format"] == "share" else 1
    rows, sums = figure["rows"], Counter[str]()
    prefix = "p-" if figure.get("timed") else ""
    for index, row in enumerate(rows):
        spans: dict[tuple[str, float | None], list[tuple[float, float]]] = {}
        for cls, start, end, _, *level in row["bars"]:
            spans.setdefault((prefix + cls, *(level or [None])), []).append((scale * start, scale * (end - start)))
            sums[prefix + cls] += end - start
        for (cls, strength), own in spans.items():
            axes.broken_barh(own, (index - 0.375, 0.75), **_bar(cls, None, strength))
        if line := row.get("line"):
            axes.plot([line] * 2, [index - 0.4, index + 0.4], color="#333", lw=1, label="_")
    for one in figure["legend"]:
        cls, strength = one["cls"], one.get("level")
        if strength is not None or sums[cls] > LEAST * sums.total():
            axes.barh(0, 0, **_bar(cls, one["name"], strength))
        elif cls == "predicted-key":
            axes.plot([], [], color="#333", lw=1, label=one["name"])
    name_rows(axes, [row["label"] for row in rows], look, lines=figure.get("lines", 1))
    label_x(axes, figure["x"].replace("share", "%"), look, xlim=(scale * figure.get("from", 0), scale * figure["to"]))
    if figure["format"] == "whole":
        axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)


def _bar(cls: str, label: str | None, level: float | None = None) -> dict[str, Any]:
    filled = {"facecolor": blue(level), "edgecolor": "white"} if level is not None else look_of(cls[2:])
    if cls.startswith("k-"):
        filled = look_of(COLOURED_AS["" if cls == "k-none" else cls[2:]])
    return {"label": label, "linewidth": 0, **filled}


def colour_of(cls: str) -> str:
    """The colour of a line: of a method, or grey."""
    return RUNS[int(cls[1:])] if cls[1:].isdigit() else "#555"


def blue(strength: float) -> tuple[float, float, float]:
    """From pale to dark, as pages draw cuts."""
    return tuple(1 - strength * (1 - part) for part in (0.12, 0.37, 0.66))  # type: ignore[return-value]


def look_of(name: str) -> dict[str, Any]:
    """Colour of a phase, and the hatching of a wait, for matplotlib."""
    return {"facecolor": colour(name), "hatch": "////" if name in WAITS else None, "edgecolor": "white"}


def _accuracy(over: Along) -> Callable[[Drawn], Figure]:
    def made(drawn: Drawn) -> Figure:
        figure = charts.accuracy(drawn.summary, over)
        figure["series"][0]["name"] = drawn.summary.method
        return figure

    return made


def _round(drawn: Drawn) -> Figure:
    assert drawn.view is not None
    start = {"kind": "rows", "title": f"Round {drawn.view['round']}", "x": "seconds since the start of the round"}
    return start | drawn.view


FIGURES: dict[str, Callable[[Drawn], Figure]] = {
    "accuracy-time": _accuracy("time"),
    "accuracy-rounds": _accuracy("rounds"),
    "seconds": lambda drawn: charts.stacked(drawn.phases, MOST_BARS),
    "round": _round,
    "gaps": lambda drawn: charts.rounds(drawn.summary),
    "devices": lambda drawn: charts.shares(drawn.summary),
    "cuts": lambda drawn: charts.cuts(drawn.summary),
    BOUND: lambda drawn: charts.bounds(drawn.summary, MOST_BARS),
    WAITED: lambda drawn: charts.waits(drawn.summary),
}
"""By name of OF_ONE_RUN."""
