"""A picture of a table: every ratio with its interval, and the paper's beside it."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from orchestrator.records.compare.ratios import Entry


def forest(title: str, tables: Mapping[str, Sequence[Entry]], mark: str) -> bytes:
    """An SVG with a panel per quantity. `mark` is written into it."""
    shown = {name: [entry for entry in entries if entry.ratio is not None] for name, entries in tables.items()}
    lines = max(len(entries) for entries in shown.values())
    with matplotlib.rc_context({"svg.hashsalt": "edgebed", "font.size": 8}):
        figure = Figure(figsize=(4.2 * len(shown), 1.1 + 0.22 * lines), layout="constrained")
        FigureCanvasSVG(figure)
        for axes, (name, entries) in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown.items(), strict=True):
            _panel(axes, name, entries)
        figure.suptitle(title, fontsize=9)
        out = io.BytesIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Title": mark})
    return out.getvalue()


def _panel(axes: Any, name: str, entries: Sequence[Entry]) -> None:
    axes.axvline(1, color="0.6", linewidth=0.8)
    for height, entry in enumerate(reversed(entries)):
        assert entry.ratio is not None
        if entry.low is not None and entry.high is not None:
            axes.plot([entry.low, entry.high], [height, height], color="C0", linewidth=1.2)
        axes.plot(entry.ratio, height, "o", color="C0", markersize=4, label="ours, 95 %" if not height else None)
        if entry.paper_ratio is not None:
            axes.plot(entry.paper_ratio, height, "x", color="C3", markersize=5, label="paper" if not height else None)
    axes.set_yticks(range(len(entries)), [f"{entry.row}, {entry.column}" for entry in reversed(entries)])
    axes.set_xscale("log")
    axes.set_title(f"{name}, ÷ the baseline", fontsize=8)
    if entries:
        axes.legend(loc="best", fontsize=7)
