"""Summaries of several runs -> what a comparison page shows: curves with bands, times, tables for every baseline. Pure.

Runs of one method in one experiment are taken together, as in `orchestrator.records.compare.groups`. The live page and
the page of `edgebed compare --html` draw this same structure (`dashboard/static/compare.js`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from orchestrator.records.compare import tabulate
from orchestrator.records.compare.comparison import compare
from orchestrator.records.compare.curves import Along, Quantity, accuracy, band, curve
from orchestrator.records.compare.groups import (
    FEWEST,
    Group,
    Key,
    bases,
    by_key,
    default_baseline,
    group,
    group_names,
    mean_by_name,
    mean_device,
    profiles,
)
from orchestrator.records.compare.groups import key as key_of
from orchestrator.records.compare.paired import paired
from orchestrator.records.summary import Summary
from orchestrator.records.words import formatting
from orchestrator.records.words.drawing import bars, phases, six_digits, thinned
from orchestrator.records.words.formatting import known, seconds
from orchestrator.records.words.palette import style

MOST_POINTS = 400
"""Points of one curve; of longer ones every n-th is drawn."""

AXES: tuple[tuple[str, Along, Quantity], ...] = (
    ("time", "time", accuracy),
    ("rounds", "rounds", accuracy),
    ("bytes", "bytes", accuracy),
    ("gap", "rounds", lambda row: row.straggler_gaps_s),
)
"""Name of a chart, what its x axis is, and the quantity."""


LATER = "known when the runs are over"


def compared(summaries: Sequence[Summary], baseline: Summary | None = None) -> dict[str, Any]:
    """Everything that the page shows. `baseline`: whose method is the baseline at first; None: the default one."""
    groups, names, table = by_key(summaries), group_names(summaries), compare(summaries, baseline)
    first = key_of(baseline or default_baseline(summaries)) if summaries else None
    methods = [
        _method(names[key], runs, [other[1] for other in list(groups)[:i]].count(key[1]))
        for i, (key, runs) in enumerate(groups.items())
    ]
    spent = {names[key]: _of_rounds(runs) for key, runs in groups.items() if any(run.rounds for run in runs)}
    targets = sorted({summary.target_accuracy for summary in summaries})
    return {
        "methods": methods,
        "times": _times(list(zip(methods, group(summaries, baseline), strict=True))),
        "spent": bars(spent, phases(name for sums in spent.values() for name in sums), seconds, "method", empty=LATER),
        "target": {"y": targets[0], "label": f"target {formatting.share(targets[0])}"} if len(targets) == 1 else None,
        "baseline": names[first] if first else "",
        "tables": {
            names[key]: _table(summaries, baseline if key == first else runs[-1], names) for key, runs in groups.items()
        },
        "labels": [label for label, _ in tabulate.COLUMNS],
        "runs": {"labels": table.labels, "texts": table.texts},
        "notes": table.notes,
        "paired": _paired(summaries, baseline),
        "profiles": [tabulate.profile_row(row) for row in profiles(summaries)],
    }


def _method(name: str, runs: Sequence[Summary], before: int) -> dict[str, Any]:
    """`before`: how many groups of the same method there are already."""
    return {
        "name": name,
        "style": msgspec.structs.asdict(style(runs[0].method, before)),
        "charts": {chart: _curves(runs, along, quantity) for chart, along, quantity in AXES},
    }


def _curves(runs: Sequence[Summary], along: Along, quantity: Quantity) -> dict[str, Any]:
    """Of each run its seed and points; the mean and the least and greatest curve, from FEWEST runs on."""
    own = [(run.seed, curve(run, along, quantity)) for run in runs if run.rounds]
    around = band([points for _, points in own]) if len(own) >= FEWEST else None
    shape = None if around is None else [around.x, around.mean, around.low, around.high]
    return {
        "seeds": [{"seed": seed, "points": _drawn(thinned(points, MOST_POINTS))} for seed, points in own],
        "band": None if shape is None else _drawn(zip(*shape, strict=True)),
    }


def _drawn(rows: Iterable[Sequence[float]]) -> list[list[float]]:
    return [[six_digits(value) for value in row] for row in rows]


def _times(methods: Sequence[tuple[dict[str, Any], Group]]) -> dict[str, Any]:
    """A bar per method to its mean time to the target, with its seeds, and the interval of the mean."""
    rows, cells = [], []
    for one, row in methods:
        time, reached = row.time_to_target_s, f"{row.reached} of {row.runs}"
        cells.append([one["name"], reached, *(known(value, seconds) for value in (time.mean, time.low, time.high))])
        if time.mean is None:
            rows.append({"label": one["name"], "bars": [], "note": f"target missed ({reached} reached it)"})
            continue
        ends = None if time.low is None or time.high is None else (time.low, time.high)
        around = f"95%: {' to '.join(map(seconds, ends))}" if ends else ", ".join(map(seconds, time.values))
        told = f"{seconds(time.mean)}, {around}; {reached} reached the target"
        rows.append(
            {
                "label": one["name"],
                "bars": [[f"c{one['style']['colour']}", 0, six_digits(time.mean), told]],
                "whisker": ends,
                "ticks": time.values,
                "note": seconds(time.mean),
                "at": max([*time.values, time.high or 0.0]),
            }
        )
    heads = [["method"], ["reached"], ["mean", "num"], ["from", "num"], ["to", "num"]]
    most = 1.25 * max((row.get("at", 0.0) for row in rows), default=0.0)
    return {"rows": rows, "to": most or 1e-9, "format": "tick", "empty": "no run yet", "columns": heads, "cells": cells}


def _of_rounds(runs: Sequence[Summary]) -> dict[str, float]:
    """Seconds of the mean device in the mean round, by name."""
    counts = [(len(run.rounds), mean_device(run)) for run in runs if run.rounds]
    return mean_by_name([{name: length / count for name, length in spent.items()} for count, spent in counts])


def _table(summaries: Sequence[Summary], baseline: Summary | None, names: dict[Key, str]) -> list[list[str]]:
    """One row per method; a speed-up that does not exist says why."""
    rows, base, shown = dict(zip(names, group(summaries, baseline), strict=True)), bases(summaries, baseline), []
    for (key, name), found in zip(names.items(), rows.values(), strict=True):
        row = msgspec.structs.replace(found, method=name)
        cells = [show(row) for _, show in tabulate.COLUMNS]
        if row.speed_up.mean is None:
            beside = rows[key_of(base[key][0])] if base.get(key) else None
            cells[_SPEED_UP] = tabulate.why_no_speed_up(row, beside)
        shown.append(cells)
    return shown


_SPEED_UP = [label for label, _ in tabulate.COLUMNS].index("speed-up")


def _paired(summaries: Sequence[Summary], baseline: Summary | None) -> dict[str, Any] | None:
    rows = paired(summaries, baseline)
    if not rows:
        return None
    cells = [[show(row) for _, show in tabulate.PAIRED] for row in rows]
    return {"about": tabulate.about_pairs(rows), "labels": [label for label, _ in tabulate.PAIRED], "rows": cells}
