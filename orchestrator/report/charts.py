"""Summaries -> charts, as data that the scripts of pages draw (`dashboard/static/charts.js`, `rows.js`), and for papers
`figures.py`. Pure.

A format is a name in FORMATS of `dashboard/static/format.js`: figures are told in the same form on every page.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import msgspec

from orchestrator.records.compare.curves import Along, curve
from orchestrator.records.critical.bound_by import Part
from orchestrator.records.run_index import RunFacts
from orchestrator.records.shown.round_view import median_round
from orchestrator.records.summary import RoundFigures, Summary
from orchestrator.records.timeline.events import events
from orchestrator.records.words import drawing, vocabulary
from orchestrator.records.words.drawing import six_digits, stride
from orchestrator.records.words.formatting import NONE, known, percent, seconds
from orchestrator.records.words.formatting import accuracy as accuracy_text
from orchestrator.records.words.palette import BOUNDS, COLOURED_AS, RUNS, WAITED_FOR, style

MOST_BARS, MOST_POINTS = 400, 4000
"""Most rounds in a chart of bars, and points in one of points: more cannot be told apart and slow the page."""

Figure = dict[str, Any]
OVER: dict[Along, tuple[str, list[str]]] = {
    "time": ("Accuracy over time", ["seconds of training", "tick", "seconds"]),
    "rounds": ("Accuracy over rounds", ["rounds", "whole", "count"]),
    "bytes": ("Accuracy over bytes", ["bytes of all devices, both ways", "bytes"]),
}
SECONDS = ["seconds", "tick", "seconds"]
ROUND = ["round", "whole", "count"]


def chart(title: str, series: list[Figure], x: list[str], y: list[str], **more: Any) -> Figure:
    """A chart of lines, bars or points."""
    return {"kind": "chart", "title": title, "height": 260, "series": series, "x": x, "y": y} | more


def accuracy(summary: Summary, over: Along) -> Figure:
    """Accuracy on the test set over time or bytes, with the target."""
    title, x = OVER[over]
    look = msgspec.structs.asdict(style(summary.method))
    series = {"name": "", "cls": f"c{look['colour']}", "points": _short(curve(summary, over))}
    target = summary.target_accuracy
    line = {"y": target, "label": f"target {accuracy_text(target)}"}
    scale = {"yMin": 0, "yMax": 1, "line": line}
    return chart(title, [series], x, ["test accuracy", "share", "accuracy"], **scale)


def extra(summary: Summary) -> Figure | None:
    """Further measurements of the method (accuracy per exit); None where there are none."""
    series = [
        {
            "name": name,
            "cls": f"c{index % len(RUNS)}",
            "dash": index % 5,
            "marker": index % 8,
            "points": _short([(row.elapsed_s, row.extra[name]) for row in summary.rounds if name in row.extra]),
        }
        for index, name in enumerate(summary.extra_names)
    ]
    title = "What the method measured besides"
    return chart(title, series, ["seconds of training", "tick", "seconds"], ["", "number"]) if series else None


def stacked(phases: Sequence[tuple[int, dict[str, float]]], most: int = MOST_BARS) -> Figure:
    """How the mean device spent each round; of a long run every n-th round."""
    look = drawing.phases({name for _, sums in phases for name in sums})
    return _per_round("What the mean device's time was spent on, per round", phases, look, most)


def bounds(summary: Summary, most: int = MOST_BARS) -> Figure:
    """Seconds of every round's critical path by kind of bound."""
    known = [(row.number, seconds_by_bound(row.round_bounds.parts)) for row in summary.rounds if row.round_bounds]
    look = {what: (like, vocabulary.BOUNDS[what]) for what, like in BOUNDS.items()}
    return _per_round("What bounded the rounds", sorted(known, key=lambda pair: pair[0]), look, most)


def seconds_by_bound(parts: Sequence[Part]) -> dict[str, float]:
    """Seconds by kind of bound: those of all devices together."""
    sums: dict[str, float] = {}
    for part in parts:
        sums[part.what] = sums.get(part.what, 0.0) + part.seconds
    return sums


def _per_round(title: str, rounds: Sequence[tuple[int, dict[str, float]]], look: drawing.Look, most: int) -> Figure:
    """A bar per round of parts that stand on each other; of many rounds every n-th."""
    shown = rounds[:: stride(len(rounds), most)]
    points: dict[str, list[list[Any]]] = {name: [] for name in look}
    for number, sums in shown:
        below = 0.0
        for name, (like, words) in look.items():
            length = sums.get(name, 0.0)
            if length > 0:
                told = f"round {number}: {words} {seconds(length)}"
                points[name].append([number, six_digits(below + length), told, None, f"p-{like}", six_digits(below)])
            below += length
    series = [
        {"name": words, "cls": f"p-{like}", "bars": True, "points": points[name]}
        for name, (like, words) in look.items()
        if points[name]
    ]
    rows = [[number, *(_told(sums, name) for name in look)] for number, sums in shown]
    columns = [["round"], *([words, "num"] for _, words in look.values())]
    return chart(title, series, ROUND, SECONDS, columns=columns, rows=rows, **ROUNDS)


ROUNDS = {"whole": True, "pad": 0.5, "xMin": 0.5}
"""Of a chart with a bar per round."""


def _told(sums: dict[str, float], name: str) -> str:
    return seconds(sums[name]) if sums.get(name) else "·"


def marks(run: RunFacts) -> list[tuple[int, str, str]]:
    """Round numbers (from 1) with kind and text of what happened in them: changed profiles, devices left and back,
    faults."""
    found = []
    for session in run.sessions:
        starts = sorted((facts.start_ns, facts.number) for facts in session.rounds.values())
        times = [start for start, _ in starts]
        for event in events(session, session.events, session.limits) if starts else ():
            ahead = event.kind == "profile"  # a profile is put on before the round that it is for
            index = bisect_right(times, event.at_ns) - 1 + ahead
            number = starts[min(max(0, index), len(starts) - 1)][1] + 1
            found.append((number, event.kind, f"{event.device or 'orchestrator'}: {event.text}"))
    return found


def shares(summary: Summary) -> Figure:
    """How each device spent the time of all rounds."""
    sums = {name: device.phase_s for name, device in summary.devices.items()}
    whole = {device: sum(own.values()) or 1.0 for device, own in sums.items()}
    parts = {device: {key: length / whole[device] for key, length in own.items()} for device, own in sums.items()}
    look, x = drawing.phases({key for own in parts.values() for key in own}), "share of the time of all rounds"
    title = "What each device's time was spent on"
    return drawing.bars(parts, look, percent, title=title, to=1, format="share", x=x)


def waits(summary: Summary) -> Figure:
    """Seconds that every device waited in all rounds, by cause."""
    devices = {name: device.wait_s for name, device in summary.devices.items() if device.wait_s is not None}
    look = {cause: (like, vocabulary.WAITED_FOR[cause]) for cause, like in WAITED_FOR.items()}
    return drawing.bars(devices, look, seconds, title="What each device waited for", x="seconds of all rounds")


def rounds(summary: Summary, happened: Sequence[tuple[int, str, str]] = ()) -> Figure:
    """Seconds of every round, and how far the slowest device was behind the median one, by cause."""
    rows = sorted(summary.rounds, key=lambda row: row.number)
    series: list[Figure] = []
    for cause in COLOURED_AS:
        own = [row for row in rows if row.straggler_why == cause]
        cls = f"k-{cause or 'none'}"
        points = [[row.number, six_digits(row.straggler_gaps_s), _behind(row, cause), None, cls] for row in own]
        if own:
            series.append({"name": f"gap: {vocabulary.cause(cause)}", "cls": cls, "bars": True, "points": points})
    lengths = [[row.number, six_digits(row.round_s), f"round {row.number}: {seconds(row.round_s)}"] for row in rows]
    series.append({"name": "length of the round", "cls": "own", "points": lengths})
    cells = [[row.number, seconds(row.round_s), *_gap_cells(row)] for row in rows]
    found = [*happened, *_disturbed(summary)]
    return chart(
        "Rounds, and how far the slowest device was behind",
        series,
        ROUND,
        SECONDS,
        marks=[{"x": number, "kind": kind, "text": text} for number, kind, text in found[:MOST_BARS]],
        columns=[["round"], ["length", "num"], ["straggler"], ["behind", "num"], ["why"]],
        rows=cells,
        **ROUNDS,
    )


def _behind(row: RoundFigures, cause: str) -> str:
    whose = f"{row.straggler}, {vocabulary.cause(cause)}" if row.straggler else "no straggler"
    return f"round {row.number}: {seconds(row.straggler_gaps_s or 0.0)} behind the median ({whose})"


def _gap_cells(row: RoundFigures) -> list[str]:
    gap, why = known(row.straggler_gaps_s, seconds), known(row.straggler_why, vocabulary.cause)
    return [row.straggler or NONE, gap, why]


def _disturbed(summary: Summary) -> list[tuple[int, str, str]]:
    return [
        (row.number, "disturbed", f"disturbed by {vocabulary.disturbances(row.disturbed)}")
        for row in summary.rounds
        if row.disturbed
    ]


def cuts(summary: Summary) -> Figure:
    """Which cut each device had in each round, the darker the more stages on the device; of a long run every n-th."""
    by_device = {name: device.cut for name, device in summary.devices.items()}
    numbers = [row.number for row in summary.rounds]
    step = stride(len(summary.rounds), MOST_BARS)
    known = [cut for cuts in by_device.values() for cut in cuts if cut is not None]
    most, last = max(known, default=1), max(numbers, default=1)
    places = sorted(enumerate(numbers), key=lambda place: place[1])[::step]

    def cell(number: int, cut: int) -> list[Any]:
        return ["level", number - 0.5, number - 0.5 + step, f"round {number}: {cut} stages on the device", cut / most]

    return {
        "kind": "rows",
        "title": "Cut: stages on the device",
        "rows": [
            {"label": device, "bars": [cell(n, cut) for index, n in places if (cut := values[index]) is not None]}
            for device, values in by_device.items()
        ],
        "from": 0.5,
        "to": last + 0.5,
        "format": "whole",
        "x": "round",
        "legend": [
            {"name": f"{cut} stage{'s' if cut > 1 else ''}", "cls": f"level.{_level(cut / most)}", "level": cut / most}
            for cut in sorted(set(known))[-9:]
        ],
        "columns": [["device"], *([str(number), "num"] for _, number in places)],
        "cells": [
            [device, *("–" if values[index] is None else values[index] for index, _ in places)]
            for device, values in by_device.items()
        ],
    }


def _level(share: float) -> str:
    """The class of the legend with nearly this strength."""
    return f"l{round(share * 8) * 25 // 2}"


def predictions(summary: Summary) -> Figure | None:
    """Predicted against actual seconds per assignment; None for a method that predicts nothing."""
    series: list[Figure] = []
    step = stride(len(summary.rounds) * len(summary.devices), MOST_POINTS)
    for index, (device, own) in enumerate(summary.devices.items()):
        pairs = [(p, a) for p, a in zip(own.predicted_s, own.actual_s, strict=True) if p and a][::step]
        look = {"cls": f"c{index % len(RUNS)}", "marker": index % 8, "dash": 0, "dots": True}
        told = [[six_digits(p), six_digits(a), f"predicted {seconds(p)}, took {seconds(a)}"] for p, a in pairs]
        if pairs:
            series.append({"name": device, "points": told} | look)
    if not series:
        return None
    most = max(max(point[0], point[1]) for one in series for point in one["points"])
    series.append({"name": "equal", "cls": "own", "dash": 2, "faint": True, "points": [[0, 0], [most, most]]})
    return chart("Predicted and actual time", series, ["predicted", "tick", "seconds"], ["actual", "tick", "seconds"])


def choose(lengths: Sequence[float], most: int) -> list[tuple[int, str]]:
    """Indexes of rounds to draw, with a remark: all up to `most`; of more the first, median, slowest and last."""
    if not lengths:
        return []
    middle = median_round((length, index) for index, length in enumerate(lengths))
    special = {
        0: "first",
        len(lengths) - 1: "last",
        max(range(len(lengths)), key=lambda i: lengths[i]): "slowest",
        middle: "median",
    }
    indexes = range(len(lengths)) if len(lengths) <= most else sorted(i for i in special if i is not None)
    return [(i, f" ({special[i]})" if i in special else "") for i in indexes]


def _short(points: Sequence[tuple[float, float]]) -> list[list[float]]:
    return [[six_digits(x), six_digits(y)] for x, y in points]
