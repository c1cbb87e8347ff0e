"""Forest plots: ratios with their intervals, and the paper's beside them."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from orchestrator.papers.verdicts import Line

TICKS = {4.0: (1.0, 1.5, 2.0, 3.0, 5.0, 7.0), 100.0: (1.0, 2.0, 5.0)}
"""First digits of the ticks of a logarithmic axis, by the largest span (highest ÷ lowest) that has room for them."""


def forest(title: str, panels: Mapping[str, Sequence[Line]], mark: str) -> bytes:
    """An SVG with a panel per group of lines. `mark` is written into it."""
    most = max(len(lines) for lines in panels.values())
    longest = max((len(line.label) for lines in panels.values() for line in lines), default=0)
    with matplotlib.rc_context({"svg.hashsalt": "edgebed", "font.size": 8}):
        size = ((3.2 + 0.06 * longest) * len(panels), 1.3 + 0.22 * most)
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
        for axes, (name, lines) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
            _panel(axes, name, lines)
        figure.suptitle(title, fontsize=9)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=7, frameon=False)
        out = io.BytesIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Title": mark})
    return out.getvalue()


def _panel(axes: Any, name: str, lines: Sequence[Line]) -> None:
    axes.axvline(1, color="0.6", linewidth=0.8)
    for height, line in enumerate(reversed(lines)):
        if line.low is not None and line.high is not None:
            axes.plot([line.low, line.high], [height, height], color="C0", linewidth=1.2)
        axes.plot(line.ratio, height, "o", color="C0", markersize=4, label="ours, 95 %" if not height else None)
        if line.paper is not None:
            axes.plot(line.paper, height, "x", color="C3", markersize=5)
    axes.plot([], [], "x", color="C3", markersize=5, label="paper")
    axes.set_yticks(range(len(lines)), [line.label for line in reversed(lines)])
    axes.set_ylim(-0.7, len(lines) - 0.3)
    axes.set_xscale("log")
    axes.margins(x=0.08)
    low, high = axes.get_xlim()
    digits = next((digits for span, digits in TICKS.items() if high / low <= span), (1.0,))
    axes.xaxis.set_major_locator(LogLocator(subs=digits))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_title(name, fontsize=8)
