"""Lays figures for papers out at their final size, and writes them with a caption.

The height of a plot is given by its kind; title, labels and legend are added around it, and the figure grows by them.
No text stands on another, and none leaves the figure. Runs and notes go into the file's metadata and into a caption
beside it; of them only one short line stands in the figure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

import matplotlib
import msgspec
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure

from orchestrator.report.look import Look

WIDTH_IN: dict[str, float] = {"column": 3.4, "page": 7.0}
"""Inches of a column and of a page of a two-column paper."""

POINTS: dict[str, float] = {"column": 7.0, "page": 8.5}
"""Size of the text in points; figures are made at their final size and need no scaling."""

LINE_POINTS = 5.0
"""Size of the line at the bottom."""

PAD_IN = 0.04
"""Between what stands above one another, and at the edges."""

NAME_SHARE = 0.3
"""Of the figure's width: room for the names of rows."""

QUIET = "#66707d"


class About(msgspec.Struct, frozen=True):
    """What must be known of figures."""

    title: str
    runs: Sequence[str]  # their ids. `notes`: what makes the figures doubtful or hard to compare
    notes: Sequence[str]
    line: str = ""  # the gravest of it in a few words, for the figure itself; "" where there is nothing


class Plot(msgspec.Struct, frozen=True):
    """One figure. `draw` fills axes, and returns what its legend does not tell: a sentence for the caption.

    `height_in`: of the plot alone, where it is not a share of the width (`height`).
    """

    name: str
    title: str
    draw: Callable[[Any, Look], str | None]
    height: float = 0.5
    height_in: float | None = None


def rows_in(count: int, each_in: float) -> float:
    """The height of a plot with a row per method or device."""
    return min(3.6, max(0.5, count * each_in))


def write(paths: Sequence[Path], plots: Sequence[Plot], look: Look, about: About) -> list[Path]:
    """Write figures and captions, and return the files of figures.

    Args:
        paths: of PDF files, which hold one figure per page, and of SVG or PNG files, which hold one; where there are
            several, the figure's name is added to the name of the file. The caption of `all.pdf` is `all.caption.txt`.
    """
    written: list[Path] = []
    with matplotlib.rc_context(style(look)):
        for path in paths:
            made = [(plot, *lay_out(plot, look, about.line)) for plot in plots]
            if path.suffix == ".pdf":
                metadata = {"Title": about.title, "Subject": "; ".join(about.notes), "Keywords": ", ".join(about.runs)}
                with PdfPages(path, metadata=metadata) as pages:
                    for _, figure, _ in made:
                        pages.savefig(figure)
                written.append(path)
            for plot, figure, _ in () if path.suffix == ".pdf" else made:
                written.append(path if len(made) == 1 else path.with_stem(f"{path.stem}-{plot.name}"))
                _write_one(figure, written[-1], about)
            told = caption([(plot.title, told) for plot, _, told in made], about)
            path.with_suffix(".caption.txt").write_text(told, encoding="utf-8")
    return written


def caption(figures: Sequence[tuple[str, str]], about: About) -> str:
    """What is drawn, the runs, and the notes: a line each."""
    lines = [f"{title}. {told}".strip() for title, told in figures]
    return "\n".join([*lines, f"Runs: {', '.join(about.runs)}.", *(f"Note: {note}." for note in about.notes)]) + "\n"


def _write_one(figure: Figure, path: Path, about: About) -> None:
    metadata: dict[str, Any] = {"Description": "; ".join([*about.runs, *about.notes])}
    if path.suffix == ".svg":
        metadata["Date"] = None  # the same runs give the same file
    figure.savefig(path, format=path.suffix[1:], dpi=300, metadata=metadata)


def style(look: Look) -> dict[Any, Any]:
    """Settings of matplotlib for one width."""
    size = POINTS[look.width]
    return {
        "font.size": size,
        "axes.labelsize": size,
        "xtick.labelsize": size - 0.5,
        "ytick.labelsize": size - 0.5,
        "legend.fontsize": size - 0.5,
        "lines.linewidth": 1.2,
        "pdf.fonttype": 42,  # TrueType: journals refuse the default, and text stays searchable
        "svg.fonttype": "none",  # text stays text
        "svg.hashsalt": "edgebed",
        "hatch.linewidth": 0.6,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": "#dfe4ea",
        "axes.axisbelow": True,
    }


# ---- layout ----


def lay_out(plot: Plot, look: Look, line: str = "") -> tuple[Figure, str]:
    """The figure, and the sentence of its caption that `plot.draw` gives."""
    width = WIDTH_IN[look.width]
    height = plot.height_in or plot.height * width
    figure = Figure(figsize=(width, height + 1))
    canvas: Any = FigureCanvasAgg(figure)
    axes = figure.add_axes((0.2, 0.3, 0.75, height / (height + 1)))
    told = plot.draw(axes, look) or ""
    dpi, size = figure.dpi, POINTS[look.width]
    handles, labels = axes.get_legend_handles_labels()
    legend = _legend(figure, handles, labels, canvas) if handles else None
    title = _text(figure, plot.title, size + 1, width, fontweight="bold") if look.title else None
    foot = _text(figure, line, LINE_POINTS, width, 1, color=QUIET) if line else None

    def tall(artist: Any) -> float:
        return 0.0 if artist is None else artist.get_window_extent(canvas.get_renderer()).height / dpi + PAD_IN

    below = tall(legend) + tall(foot)
    for _ in range(2):  # the ticks depend on the room, and the room on the ticks
        box = axes.get_window_extent(canvas.get_renderer())
        ticks = [axis.get_tightbbox(canvas.get_renderer()) for axis in (axes.xaxis, axes.yaxis)]
        left, right = (max((edge, 0)) / dpi + PAD_IN for edge in _overhang(box, ticks))
        low = (box.y0 - min(box.y0, *(each.y0 for each in ticks if each is not None))) / dpi
        high = max(0.0, *(each.y1 - box.y1 for each in ticks if each is not None)) / dpi
        whole = PAD_IN + tall(title) + high + height + low + PAD_IN + below
        figure.set_size_inches(width, whole)
        axes.set_position(
            (left / width, (low + PAD_IN + below) / whole, (width - left - right) / width, height / whole)
        )
    for artist, top in ((title, whole - PAD_IN), (legend, below), (foot, tall(foot))):
        if artist is not None and artist is not legend:
            artist.set_position((PAD_IN / width, top / whole))
        elif artist is not None:
            artist.set_bbox_to_anchor((0.5, top / whole), transform=figure.transFigure)
    return figure, told


def _overhang(box: Any, ticks: Sequence[Any]) -> tuple[float, float]:
    """Pixels by which labels stand out of the axes, left and right."""
    known = [each for each in ticks if each is not None]
    return box.x0 - min(each.x0 for each in known), max(each.x1 for each in known) - box.x1


def _text(figure: Figure, text: str, size: float, width_in: float, most: int = 9, **more: Any) -> Any:
    """Text at the left edge, in as many lines as it needs."""
    return figure.text(0, 0, folded(text, width_in - 2 * PAD_IN, size, most), fontsize=size, va="top", **more)


def _legend(figure: Figure, handles: Any, labels: Sequence[str], canvas: Any) -> Any:
    """Below the plot, in as many columns as fit."""
    width = figure.get_size_inches()[0]
    labels = [folded(label, 0.8 * width, matplotlib.rcParams["legend.fontsize"]) for label in labels]
    for columns in range(min(6, len(labels)), 0, -1):
        legend = figure.legend(
            handles,
            labels,
            loc="upper center",
            borderaxespad=0,
            borderpad=0,
            ncols=columns,
            frameon=False,
            handlelength=2.0,
            columnspacing=1.0,
        )
        if columns == 1 or legend.get_window_extent(canvas.get_renderer()).width < (width - 2 * PAD_IN) * figure.dpi:
            return legend
        legend.remove()
    raise AssertionError("one column is always taken")


def folded(text: str, width_in: float, points: float, most: int = 9) -> str:
    """Text in lines that are no wider; after `most` lines it is cut, and ends in …"""
    lines = wrap(text, max(4, int(width_in * 72 / (0.6 * points))))
    if len(lines) > most:
        lines = [*lines[: most - 1], f"{lines[most - 1][:-1]}…"]
    return "\n".join(lines)


# ---- what several figures have ----


def name_rows(axes: Any, names: Sequence[str], look: Look, lines: int = 2) -> None:
    """A row per name, the first at the top. Of many, every n-th is named."""
    size, step = POINTS[look.width] - 0.5, max(1, -(-len(names) // 25))
    room = NAME_SHARE * WIDTH_IN[look.width]
    axes.set_yticks(range(0, len(names), step), [folded(name, room, size, lines) for name in names[::step]])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(False, axis="y")


def label_x(axes: Any, text: str, look: Look, **more: Any) -> None:
    """The label of the x axis, in lines that fit below the plot; few ticks, so that their labels stand apart."""
    axes.set(xlabel=folded(text, (1 - NAME_SHARE) * WIDTH_IN[look.width], POINTS[look.width]), **more)
    axes.xaxis.get_major_locator().set_params(nbins=5 if look.width == "column" else 8)


def by_round(axes: Any, numbers: Sequence[int], look: Look) -> None:
    """An axis of rounds: whole numbers, and room for the bars of the first and the last."""
    label_x(axes, "round", look, xlim=(min(numbers, default=1) - 0.5, max(numbers, default=1) + 0.5))
    axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)


def beside_bars(axes: Any, texts: Sequence[tuple[float, int, str]], size: float) -> None:
    """Write a text behind the end of each row's bar, and make the axis as long as they need. `texts`: (end of the bar,
    row, text)."""
    canvas, box = axes.figure.canvas, axes.get_window_extent()
    room, most = 0.66 * box.width, max((end for end, _, _ in texts), default=0.0) or 1.0
    for end, row, text in texts:
        made = axes.annotate(
            text,
            (end, row),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=size,
            annotation_clip=False,
        )
        needed = made.get_window_extent(canvas.get_renderer()).width + 8 * axes.figure.dpi / 72
        most = max(most, end * room / max(room - needed, 0.1 * room))
    axes.set_xlim(0, 1.02 * most)
