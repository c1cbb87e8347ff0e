"""Figures for papers: no text stands on another, on a plot or out of the figure, whatever the runs are called."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import combinations, product
from typing import Any

import matplotlib
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.figure import Figure

from orchestrator.records.account import summarise, whole
from orchestrator.records.live.settling import explained
from orchestrator.records.live.summing import summary_of
from orchestrator.records.shown.round_view import round_view
from orchestrator.records.summary import Summary
from orchestrator.report import figures, paper_figures, sheet
from orchestrator.report.look import Look
from orchestrator.report.page import mean_phases
from tests.summaries import changed
from tests.synthetic import FLEET, Synthetic

Box = tuple[float, float, float, float]

LONG = "federated averaging with a momentum term and adaptively-compressed-uploads"
NOTES = [f"devices were later than those of the reference {LONG} in {i} rounds" for i in range(15)]


class Drawn(RendererAgg):
    """Notes where each text is drawn: left, bottom, right, top, in pixels from the top left."""

    boxes: list[tuple[str, Box]]

    def draw_text(
        self, gc: Any, x: float, y: float, s: str, prop: Any, angle: float, ismath: Any = False, mtext: Any = None
    ) -> None:  # type: ignore[override]
        width, height, descent = self.get_text_width_height_descent(s, prop, ismath)
        flat = (x, y - (height - descent), x + width, y + descent)
        self.boxes.append((s, flat if not angle else (x - (height - descent), y - width, x + descent, y)))
        super().draw_text(gc, x, y, s, prop, angle, ismath, mtext)


def texts(figure: Figure) -> tuple[list[tuple[str, Box]], Box, Box]:
    """All texts, the plot, and the figure."""
    canvas = FigureCanvasAgg(figure)
    width, height = (int(value) for value in figure.bbox.size)
    renderer = Drawn(width, height, figure.dpi)
    renderer.boxes = []
    canvas.renderer = renderer
    figure.draw(renderer)
    plot = figure.axes[0].get_window_extent(renderer)
    return renderer.boxes, (plot.x0, height - plot.y1, plot.x1, height - plot.y0), (0, 0, width, height)


def common(one: Box, other: Box) -> float:
    """The smaller side, in pixels, of what two boxes have in common."""
    return min(min(one[2], other[2]) - max(one[0], other[0]), min(one[3], other[3]) - max(one[1], other[1]))


def faults(figure: Figure) -> list[str]:
    """Overlaps of more than a pixel, and what leaves the figure."""
    boxes, plot, page = texts(figure)
    assert len(boxes) > 3
    found = [f"{a!r} on {b!r}" for (a, one), (b, other) in combinations(boxes, 2) if common(one, other) > 1]
    found += [
        f"{text!r} leaves"
        for text, box in boxes
        if common(box, page) < min(box[2] - box[0], box[3] - box[1]) - 1 or box[0] < -1 or box[2] > page[2] + 1
    ]
    inside = [text for text, box in boxes if common(box, plot) > 1]
    return found + [
        f"{text!r} on the plot"
        for text in inside
        if "s" not in text.split()
        and "reached" not in text
        and "ms" not in text.split()
        and not text.endswith((" s", " ms", "runs"))
    ]


@cache
def records(rounds: int) -> Summary:
    return summarise(Synthetic(rounds=rounds, facts=True).records)


def several(count: int, rounds: int, seeds: int, long: bool, missed: bool) -> list[Summary]:
    names = ["dtfl", "fedavg", "splitfed", "tifl", "fedat", "fedprox", "heterofl", "s2fl"][:count]
    return [
        changed(
            records(rounds),
            method=f"{LONG} {name}" if long else name,
            seed=seed,
            run=f"{name}-{seed}",
            interleaved=True,
            series=str(seed),
            block=[f"fleet-{seed}/{number}" for number in range(1, rounds + 1)],
            time_to_target_s=None if missed and name == "fedavg" else 1234.5 * (1 + 0.1 * seed),
        )
        for name in names
        for seed in range(1, seeds + 1)
    ]


LOOKS = [Look(width="column"), Look(width="page", title=False), Look(width="column", spread="interval", log=True)]


def of_runs() -> Iterator[Figure]:
    cases = product((1, 2, 4, 8), (1, 30), (False, True))
    for index, (count, rounds, long) in enumerate(cases):
        runs = several(count, rounds, 3 if count < 8 else 2, long, missed=count > 1)
        look, notes = LOOKS[index % 3], (0, 1, 15)[index // 2 % 3]
        yield from laid_out(paper_figures.plots(runs), look, f"Note: {'; '.join(NOTES[:notes])}" if notes else "")


def of_one_run() -> Iterator[Figure]:
    for index, (devices, rounds, long) in enumerate(product((1, 3, 30), (1, 6, 30), (False, True))):
        fleet = {f"{LONG if long else 'cpu'}-{i}": list(FLEET.values())[i % 3] for i in range(devices)}
        if devices * rounds > 200:
            continue  # these fill the axes already with fewer
        state = whole(Synthetic(fleet, rounds=rounds, facts=True).records)
        lines = [each for each in explained(state) if each.facts.finished is not None]
        view = round_view(lines[0], lines[0].facts.end_ns)
        phases = [(each.facts.number + 1, mean_phases(each)) for each in lines]
        drawn = figures.Drawn(summary_of(state), phases, view)
        yield from laid_out(figures.plots(drawn), LOOKS[index % 2], f"Note: {NOTES[0]}")


def laid_out(plots: list[sheet.Plot], look: Look, line: str) -> Iterator[Figure]:
    with matplotlib.rc_context(sheet.style(look)):
        for plot in plots:
            yield sheet.lay_out(plot, look, line)[0]


@pytest.mark.parametrize("drawn", [of_runs, of_one_run])
def test_no_text_overlaps_or_leaves_the_figure(drawn: Any, record_property: Any) -> None:
    count, bad = 0, []
    for figure in drawn():
        if found := faults(figure):
            bad.append((count, figure.axes[0].get_xlabel(), found[:4]))
        count += 1
    record_property("figures", count)
    assert not bad, f"{len(bad)} of {count}: {bad[:12]}"
    assert count > 90
