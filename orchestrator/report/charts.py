"""Summaries and timelines -> charts, as plain Plotly figures (dictionaries). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from orchestrator.records.timeline import RoundTimeline
from orchestrator.report.palette import RUNS, colour, ordered

LEGEND = 60
"""Pixels kept below every chart for its legend."""

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


def accuracy(summaries: Sequence[Summary]) -> Figure:
    """Accuracy on the test set over the seconds of all rounds, with the target, and where it was reached."""
    data, target = [], summaries[-1]["target_accuracy"]
    for index, summary in enumerate(summaries):
        points = [p for p in zip(summary["elapsed_s"], summary["accuracy"], strict=True) if p[1] is not None]
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers" if len(points) < 200 else "lines",
                "name": summary["method"] if len({s["method"] for s in summaries}) > 1 else summary["run"],
                "x": [x for x, _ in points],
                "y": [y for _, y in points],
                "line": {"color": RUNS[index % len(RUNS)]},
                "hovertemplate": "%{y:.1%} after %{x:.1f} s<extra>%{fullData.name}</extra>",
            }
        )
    line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": target, "y1": target}
    text = {"xref": "paper", "x": 1, "y": target, "text": f"target {target:.0%}", "showarrow": False, "yshift": 9}
    return figure(
        data,
        "seconds of training (rounds added up, evaluation excluded, divided by the dilation)",
        "test accuracy",
        xaxis={"rangemode": "tozero"},
        yaxis={"tickformat": ".0%", "range": [0, 1.05]},
        shapes=[line | {"line": {"dash": "dash", "width": 1, "color": "#888"}}],
        annotations=[text | {"xanchor": "right"}],
        **_legend(len(summaries) > 1, 380),
    )


def gantt(timeline: RoundTimeline) -> Figure:
    """Every device's segments of one round, over seconds since its start."""
    names = ordered({s.name for device in timeline.devices.values() for s in device.segments})
    start, dilation = timeline.facts.start_ns, timeline.facts.dilation
    data = []
    for name in names:
        bars = [(d, s) for d, device in timeline.devices.items() for s in device.segments if s.name == name]
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": name,
                "y": [device for device, _ in bars],
                "base": [_seconds(s.start_ns - start, dilation) for _, s in bars],
                "x": [_seconds(s.end_ns - s.start_ns, dilation) for _, s in bars],
                "customdata": [f" ({s.detail})" if s.detail else "" for _, s in bars],
                "marker": {"color": colour(name), "line": {"width": 0}},
                "hovertemplate": f"%{{y}}: {name}%{{customdata}} %{{x:.3f}} s, from %{{base:.3f}} s<extra></extra>",
            }
        )
    return figure(
        data,
        "seconds since the start of the round",
        "",
        xaxis={"range": [0, _seconds(timeline.facts.end_ns - start, dilation)]},
        yaxis=BY_DEVICE,
        barmode="overlay",
        bargap=0.25,
        height=_height(len(timeline.devices)),
    )


def shares(summary: Summary) -> Figure:
    """What each device's time in all rounds was spent on."""
    phases: dict[str, dict[str, float]] = summary["phase_s"]
    whole = {device: sum(sums.values()) or 1.0 for device, sums in phases.items()}
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": list(phases),
            "x": [phases[device].get(name, 0.0) / whole[device] for device in phases],
            "marker": {"color": colour(name)},
            "hovertemplate": f"%{{y}}: {name} %{{x:.1%}}<extra></extra>",
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


def rounds(summary: Summary) -> Figure:
    """Seconds of every round, and how far the slowest device was behind the median one, by cause."""
    numbers = list(range(1, summary["rounds"] + 1))
    causes = {"cpu": "compute", "uplink": "upload_tail", "downlink": "download", "server": "server_wait"}
    data: list[dict[str, Any]] = [
        {
            "type": "bar",
            "name": f"straggler gap: {cause}",
            "x": [n for n, why in zip(numbers, summary["straggler_why"], strict=True) if why == cause],
            "y": [
                gap
                for gap, why in zip(summary["straggler_gaps_s"], summary["straggler_why"], strict=True)
                if why == cause
            ],
            "customdata": [
                d for d, w in zip(summary["straggler"], summary["straggler_why"], strict=True) if w == cause
            ],
            "marker": {"color": colour(phase)},
            "hovertemplate": f"round %{{x}}: %{{customdata}} %{{y:.2f}} s behind the median ({cause})<extra></extra>",
        }
        for cause, phase in causes.items()
        if cause in summary["straggler_why"]
    ]
    line = {"type": "scatter", "mode": "lines+markers", "name": "round", "x": numbers, "y": summary["round_s"]}
    data.append(line | {"line": {"color": "#888"}, "hovertemplate": "round %{x}: %{y:.2f} s<extra></extra>"})
    every = {"dtick": 1} if len(numbers) <= 20 else {}
    return figure(data, "round", "seconds", xaxis=every, yaxis={"rangemode": "tozero"}, barmode="stack", height=360)


def cuts(summary: Summary) -> Figure:
    """Which cut each device had in each round."""
    by_device: dict[str, list[int | None]] = summary["cut"]
    data = {
        "type": "heatmap",
        "x": list(range(1, summary["rounds"] + 1)),
        "y": list(by_device),
        "z": list(by_device.values()),
        "colorscale": "Viridis",
        "colorbar": {"title": {"text": "stages on<br>the device"}, "dtick": 1},
        "xgap": 1,
        "ygap": 1,
        "hovertemplate": "round %{x}, %{y}: %{z} stages on the device<extra></extra>",
    }
    return figure([data], "round", "", yaxis=BY_DEVICE, **_legend(False, _height(len(by_device))))


def predictions(summary: Summary) -> Figure | None:
    """Predicted against actual seconds per assignment; None for a method that predicts nothing."""
    data, most = [], 0.0
    for index, (device, predicted) in enumerate(summary["predicted_s"].items()):
        pairs = [(p, a) for p, a in zip(predicted, summary["actual_s"][device], strict=True) if p and a]
        if not pairs:
            continue
        most = max(most, *(value for pair in pairs for value in pair))
        points = {"type": "scatter", "mode": "markers", "name": device}
        marker = {"color": RUNS[index % len(RUNS)], "opacity": 0.7}
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
    """Indexes of rounds to draw, and what makes them special: all up to `most`, then first, median, slowest, last."""
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


def _seconds(ns: int, dilation: float) -> float:
    return round(ns / 1e9 / dilation, 6)


def _legend(shown: bool, height: int) -> dict[str, Any]:
    """Layout of a chart with a legend, or without one and the room for it."""
    if shown:
        return {"showlegend": True, "height": height}
    return {"showlegend": False, "height": height - LEGEND, "margin": {"l": 60, "r": 20, "t": 28, "b": 50}}


def _height(devices: int) -> int:
    return 110 + LEGEND + min(2400, max(3, devices) * 34)
