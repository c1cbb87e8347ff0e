"""Summaries and timelines -> charts, as plain Plotly figures (dictionaries). Pure."""

from __future__ import annotations

import html
from bisect import bisect_right
from collections.abc import Sequence
from statistics import median
from typing import Any

from orchestrator.records import vocabulary
from orchestrator.records.events import events
from orchestrator.records.formatting import percent
from orchestrator.records.gantt import device_rows, length_s, orchestrator_rows
from orchestrator.records.groups import Group
from orchestrator.records.palette import COLOURED_AS, DASHES, RUNS, WAITS, colour, ordered, style
from orchestrator.records.run_index import RunFacts
from orchestrator.records.timeline import RoundTimeline
from orchestrator.records.vocabulary import phase

LEGEND = 60
"""Pixels below every chart for its legend."""

MOST_BARS, MOST_POINTS = 400, 4000
"""Most rounds in a chart of bars, and points in one of points: more cannot be told apart and slow the page."""

BY_DEVICE = {"autorange": "reversed", "type": "category", "ticksuffix": "  "}

Figure = dict[str, Any]
Summary = dict[str, Any]


def figure(data: list[dict[str, Any]], x: str, y: str, **layout: Any) -> Figure:
    """A figure with axis titles. Colours of text and paper are the page's to set."""
    axes = {"xaxis": {"title": {"text": x}, "automargin": True}, "yaxis": {"title": {"text": y}, "automargin": True}}
    for name in axes:
        axes[name] |= layout.pop(name, {})
    legend = {"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0, "traceorder": "normal"}
    common = {
        "margin": {"l": 60, "r": 20, "t": 28, "b": 50 + LEGEND},
        "legend": legend,
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "#9aa4af", "activecolor": "#5d6b7a"},
    }
    return {"data": data, "layout": common | axes | layout}


def accuracy(summaries: Sequence[Summary], over: str = "elapsed_s") -> Figure:
    """Accuracy on the test set over the seconds of all rounds, or their number, with the target."""
    data, target = [], summaries[-1]["target_accuracy"]
    by_time = over == "elapsed_s"
    where = "after %{x:.1f} s" if by_time else "after round %{x}"
    for summary in summaries:
        own = style(summary["method"])
        xs = summary["elapsed_s"] if by_time else range(1, summary["rounds"] + 1)
        points = [p for p in zip(xs, summary["accuracy"], strict=True) if p[1] is not None]
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers" if len(points) < 200 else "lines",
                "name": _name(summary, summaries),
                "x": [round(x, 4) for x, _ in points],
                "y": [y for _, y in points],
                "line": {"color": RUNS[own.colour].light, "dash": _dash(own.dash)},
                "marker": {"symbol": own.marker},
                "hovertemplate": f"%{{y:.2%}} {where}<extra>%{{fullData.name}}</extra>",
            }
        )
    line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": target, "y1": target}
    text = {
        "xref": "paper",
        "x": 0,
        "y": target,
        "text": f"target {percent(target, 0)}",
        "showarrow": False,
        "yshift": 9,
    }
    return figure(
        data,
        "seconds of training (see below)" if by_time else "rounds that have ended",
        "test accuracy",
        xaxis={"rangemode": "tozero"},
        yaxis={"tickformat": ".0%", "range": [0, 1.05]},
        shapes=[line | {"line": {"dash": "dash", "width": 1, "color": "#888"}}],
        annotations=[text | {"xanchor": "left"}],
        **_legend(len(summaries) > 1, 380),
    )


def _dash(index: int) -> str:
    return ",".join(f"{length}px" for length in DASHES[index]) or "solid"


def _fill(name: str) -> dict[str, Any]:
    """Colour of a phase, and the hatching of a wait."""
    hatch = (
        {"pattern": {"shape": "/", "fgcolor": "#fff", "bgcolor": colour(name), "size": 5, "solidity": 0.35}}
        if name in WAITS
        else {}
    )
    return {"color": colour(name), "line": {"width": 0}} | hatch


def _name(summary: Summary, summaries: Sequence[Summary]) -> str:
    """The shortest name that is unique: the method, the method with the seed, or the run's id."""
    alike = [other for other in summaries if other["method"] == summary["method"]]
    if len(alike) == 1 and len(summaries) > 1:
        return str(summary["method"])
    if len({other["seed"] for other in alike}) == len(alike) > 1:
        return f"{summary['method']}, seed {summary['seed']}"
    return str(summary["run"])


def times(groups: Sequence[Group]) -> Figure:
    """Time to target of every method, with its interval over the seeds."""
    shown = [(f"{g.method} ({g.reached} of {g.runs})", g.time_to_target_s) for g in groups]
    data = {
        "type": "bar",
        "orientation": "h",
        "y": [name for name, _ in shown],
        "x": [value.mean for _, value in shown],
        "marker": {"color": [RUNS[style(g.method.removesuffix(" (simulated)")).colour].light for g in groups]},
        "error_x": {
            "array": [(v.high - v.mean) if v.high is not None and v.mean is not None else 0 for _, v in shown],
            "color": "#888",
        },
        "hovertemplate": "%{y}: %{x:.4g} s<extra></extra>",
    }
    layout = {"yaxis": BY_DEVICE, "bargap": 0.4, **_legend(False, _height(len(groups)))}
    return figure([data], "seconds to the target accuracy (reached by how many runs)", "", **layout)


def extra(summary: Summary) -> Figure | None:
    """Further measurements of the method (accuracy per exit); None where there are none."""
    data = [
        {"type": "scatter", "mode": "lines+markers", "name": name, "x": summary["elapsed_s"], "y": values}
        | {"line": {"color": RUNS[index % len(RUNS)].light}, "hovertemplate": f"{name}: %{{y:.4g}} after %{{x:.1f}} s"}
        for index, (name, values) in enumerate(summary["extra"].items())
    ]
    return figure(data, "seconds of training", "", xaxis={"rangemode": "tozero"}, height=380) if data else None


def stacked(phases: Sequence[tuple[int, dict[str, float]]]) -> Figure:
    """How the mean device spent each round; of a long run every n-th round."""
    shown = phases[:: stride(len(phases), MOST_BARS)]
    data = [
        {
            "type": "bar",
            "name": phase(name),
            "x": [number for number, _ in shown],
            "y": [round(sums.get(name, 0.0), 4) for _, sums in shown],
            "marker": _fill(name),
            "hovertemplate": f"round %{{x}}: {phase(name)} %{{y:.2f}} s<extra></extra>",
        }
        for name in ordered({name for _, sums in shown for name in sums})
    ]
    every = {"dtick": 1} if len(shown) <= 20 else {}
    return figure(data, "round", "seconds of the mean device", xaxis=every, barmode="stack", bargap=0.15, height=440)


def marks(run: RunFacts) -> list[tuple[int, str]]:
    """Round numbers (from 1) with what happened in them: changed profiles, devices left and back, faults."""
    found = []
    for session in run.sessions:
        starts = sorted((facts.start_ns, facts.number) for facts in session.rounds.values())
        times = [start for start, _ in starts]
        for event in events(session) if starts else ():
            ahead = event.kind == "profile"  # a profile is put on before the round that it is for
            index = bisect_right(times, event.at_ns) - 1 + ahead
            number = starts[min(max(0, index), len(starts) - 1)][1] + 1
            found.append((number, f"{event.device or 'orchestrator'}: {event.text}"))
    return found


def stride(count: int, most: int) -> int:
    """The step with which at most `most` of `count` items are shown."""
    return max(1, -(-count // most))


def gantt(timeline: RoundTimeline) -> Figure:
    """Every device's segments of one round, and what the server did, over seconds since its start."""
    rows = device_rows(timeline) + orchestrator_rows(timeline)
    data = []
    for name in ordered({bar.name for row in rows for bar in row.bars}):
        bars = [(row.label, bar) for row in rows for bar in row.bars if bar.name == name]
        shown = phase(name)
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": shown,
                "y": [device for device, _ in bars],
                "base": [round(bar.start_s, 6) for _, bar in bars],
                "x": [round(bar.length_s, 6) for _, bar in bars],
                "customdata": [f" ({bar.detail})" if bar.detail else "" for _, bar in bars],
                "marker": _fill(name),
                "hovertemplate": f"%{{y}}: {shown}%{{customdata}} %{{x:.3f}} s, from %{{base:.3f}} s<extra></extra>",
            }
        )
    return figure(
        data,
        "seconds since the start of the round",
        "",
        xaxis={"range": [0, round(length_s(timeline.facts), 6)]},
        yaxis=BY_DEVICE,
        barmode="overlay",
        bargap=0.25,
        height=_height(len(rows)),
    )


def shares(summary: Summary) -> Figure:
    """How each device spent the time of all rounds."""
    phases: dict[str, dict[str, float]] = summary["phase_s"]
    whole = {device: sum(sums.values()) or 1.0 for device, sums in phases.items()}
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": phase(name),
            "y": list(phases),
            "x": [phases[device].get(name, 0.0) / whole[device] for device in phases],
            "marker": _fill(name),
            "hovertemplate": f"%{{y}}: {phase(name)} %{{x:.1%}}<extra></extra>",
        }
        for name in ordered({name for sums in phases.values() for name in sums})
    ]
    return figure(
        data,
        "share of the time of all rounds",
        "",
        xaxis={"tickformat": ".0%", "range": [0, 1]},
        yaxis=BY_DEVICE,
        barmode="stack",
        height=_height(len(phases)),
    )


def rounds(summary: Summary, happened: Sequence[tuple[int, str]] = ()) -> Figure:
    """Seconds of every round, and how far the slowest device was behind the median one, by cause."""
    numbers = summary["number"]
    rows = list(zip(numbers, summary["straggler_gaps_s"], summary["straggler"], summary["straggler_why"], strict=True))
    data: list[dict[str, Any]] = []
    for cause, like in COLOURED_AS.items():
        own = [row for row in rows if row[3] == cause]
        if own:
            bar: dict[str, Any] = {
                "type": "bar",
                "name": f"straggler gap: {vocabulary.cause(cause)}",
                "marker": {"color": colour(like)},
            }
            why = vocabulary.cause(cause)
            hover = f"round %{{x}}: %{{customdata}} %{{y:.2f}} s behind the median ({why})<extra></extra>"
            points: dict[str, Any] = {
                "x": [r[0] for r in own],
                "y": [r[1] for r in own],
                "customdata": [r[2] for r in own],
            }
            data.append(bar | points | {"hovertemplate": hover})
    order = sorted(range(len(numbers)), key=lambda index: numbers[index])
    line: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines+markers" if len(numbers) < 200 else "lines",
        "name": "round",
    }
    line |= {"x": [numbers[i] for i in order], "y": [summary["round_s"][i] for i in order]}
    data.append(line | {"line": {"color": "#888"}, "hovertemplate": "round %{x}: %{y:.2f} s<extra></extra>"})
    if happened := [*happened, *_disturbed(summary)]:
        data.append(_marked(happened, max(summary["round_s"], default=1.0)))
    every = {"dtick": 1} if len(numbers) <= 20 else {}
    return figure(data, "round", "seconds", xaxis=every, yaxis={"rangemode": "tozero"}, barmode="stack", height=400)


def _disturbed(summary: Summary) -> list[tuple[int, str]]:
    rounds = zip(summary["number"], summary["disturbed"], strict=True)
    return [(number, f"disturbed by {vocabulary.disturbances(causes)}") for number, causes in rounds if causes]


def _marked(happened: Sequence[tuple[int, str]], top: float) -> dict[str, Any]:
    """A mark per round above the curve, with all that happened in it."""
    by_round: dict[int, list[str]] = {}
    for number, what in happened:
        by_round.setdefault(number, []).append(what)
    said = [what[:8] + ([f"… {len(what) - 8} more"] if len(what) > 8 else []) for what in by_round.values()]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "a fault, a device gone or back, a new profile, a disturbance by the host",
        "x": list(by_round),
        "y": [top * 1.08] * len(by_round),
        "customdata": ["<br>".join(html.escape(text) for text in what) for what in said],
        "marker": {"symbol": "triangle-down", "size": 11, "color": "#c22532"},
        "hovertemplate": "round %{x}<br>%{customdata}<extra></extra>",
    }


def cuts(summary: Summary) -> Figure:
    """Which cut each device had in each round; of a long run every n-th round."""
    by_device: dict[str, list[int | None]] = summary["cut"]
    step = stride(summary["rounds"], MOST_BARS)
    data = {
        "type": "heatmap",
        "x": summary["number"][::step],
        "y": list(by_device),
        "z": [values[::step] for values in by_device.values()],
        "colorscale": "Viridis",
        "colorbar": {"title": {"text": "stages on<br>the device"}, "dtick": 1},
        "xgap": 1 if summary["rounds"] <= 60 else 0,
        "ygap": 1,
        "hovertemplate": "round %{x}, %{y}: %{z} stages on the device<extra></extra>",
    }
    every = {"dtick": 1} if summary["rounds"] <= 12 else {}
    return figure([data], "round", "", xaxis=every, yaxis=BY_DEVICE, **_legend(False, _height(len(by_device))))


def predictions(summary: Summary) -> Figure | None:
    """Predicted against actual seconds per assignment; None for a method that predicts nothing."""
    data, most = [], 0.0
    step = stride(summary["rounds"] * len(summary["predicted_s"]), MOST_POINTS)
    for index, (device, predicted) in enumerate(summary["predicted_s"].items()):
        pairs = [(p, a) for p, a in zip(predicted, summary["actual_s"][device], strict=True) if p and a][::step]
        if not pairs:
            continue
        most = max(most, *(value for pair in pairs for value in pair))
        points = {"type": "scatter", "mode": "markers", "name": device}
        marker = {"color": RUNS[index % len(RUNS)].light, "opacity": 0.7}
        hover = f"{device}: predicted %{{x:.2f}} s, took %{{y:.2f}} s<extra></extra>"
        data.append(
            points | {"x": [p for p, _ in pairs], "y": [a for _, a in pairs], "marker": marker, "hovertemplate": hover}
        )
    if not data:
        return None
    equal = {"type": "line", "x0": 0, "y0": 0, "x1": most, "y1": most, "line": {"dash": "dot", "color": "#888"}}
    zero = {"rangemode": "tozero"}
    return figure(data, "predicted s", "actual s", xaxis=zero, yaxis=zero, shapes=[equal], height=380)


def choose(seconds: Sequence[float], most: int) -> list[tuple[int, str]]:
    """Indexes of rounds to draw, with a remark: all up to `most`; of more the first, median, slowest and last."""
    if not seconds:
        return []
    middle = median(seconds)
    special = {
        min(range(len(seconds)), key=lambda i: abs(seconds[i] - middle)): "median",
        0: "first",
        len(seconds) - 1: "last",
        max(range(len(seconds)), key=lambda i: seconds[i]): "slowest",
    }
    indexes = range(len(seconds)) if len(seconds) <= most else sorted(special)
    return [(i, f" ({special[i]})" if i in special else "") for i in indexes]


def _legend(shown: bool, height: int) -> dict[str, Any]:
    """Layout of a chart with a legend, or without one and the room for it."""
    if shown:
        return {"showlegend": True, "height": height}
    return {"showlegend": False, "height": height - LEGEND, "margin": {"l": 60, "r": 20, "t": 28, "b": 50}}


def _height(devices: int) -> int:
    return 110 + LEGEND + min(2400, max(3, devices) * 34)
