"""Figures of several runs for papers: their files, sizes and texts."""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib
import msgspec
import pytest
from PIL import Image

from edgebed.errors import UsageError
from orchestrator.records import types as t
from orchestrator.records.account import summarise
from orchestrator.records.compare.groups import mean_by_name
from orchestrator.records.critical.bound_by import Part
from orchestrator.records.summary import BoundBy, Summary
from orchestrator.report.look import PAIRED, REACHED, Look
from orchestrator.report.paper_figures import FIGURES, bound_shares, plots, write_figures
from orchestrator.report.sheet import lay_out, style
from tests.summaries import changed
from tests.synthetic import Synthetic


def run(method: str, seed: int) -> Summary:
    """As of an experiment whose rounds alternated."""
    records = [
        msgspec.structs.replace(r, seed=seed) if isinstance(r, t.RunStarted) else r
        for r in Synthetic(method=method, facts=True).records
    ]
    figures = summarise(records)
    blocks = [f"fleet-{seed}/{number}" for number in range(1, len(figures.rounds) + 1)]
    return changed(figures, interleaved=True, series=str(seed), block=blocks)


RUNS = [run(method, seed) for method in ("dtfl", "fedavg") for seed in (1, 2, 3)]


def text_of(svg: Path) -> str:
    return " ".join(re.findall(r"<text[^>]*>([^<]*)</text>", svg.read_text(encoding="utf-8")))


def test_one_svg_per_figure_with_text_that_stays_text(tmp_path: Path) -> None:
    written = write_figures(RUNS, [tmp_path / "all.svg"], None, Look())
    assert [path.name for path in written] == [f"all-{name}.svg" for name in FIGURES if name != REACHED]
    for path in written:
        assert "dtfl" in text_of(path)
        assert "fedavg" in text_of(path)
    assert "seconds to 75% test accuracy" in text_of(tmp_path / "all-time-to-target.svg")
    assert "band: least to greatest of the seeds" in text_of(tmp_path / "all-accuracy-time.svg")


def test_time_can_be_logarithmic() -> None:
    shapes = {}
    for log in (False, True):
        (plot,) = plots(RUNS, "accuracy-time")
        with matplotlib.rc_context(style(Look())):
            figure, _ = lay_out(plot, Look(log=log))
        shapes[log] = figure.axes[0].get_xscale(), figure.axes[0].get_xlim()[0] > 0
    assert shapes == {False: ("linear", False), True: ("log", True)}
    least, most = figure.axes[0].get_xlim()
    assert len([tick for tick in figure.axes[0].get_xticks() if least <= tick <= most]) >= 2


def test_only_runs_whose_rounds_alternated_have_the_figure_of_pairs(tmp_path: Path) -> None:
    alone = [changed(each, interleaved=False) for each in RUNS]
    written = write_figures(alone, [tmp_path / "all.svg"], None, Look())
    assert [path.name for path in written] == [f"all-{name}.svg" for name in FIGURES if name not in (PAIRED, REACHED)]


def test_bounds_and_waits_are_drawn_where_the_records_tell_them(tmp_path: Path) -> None:
    write_figures(RUNS, [tmp_path / "all.svg"], None, Look())
    bounds, waits = text_of(tmp_path / "all-bounds.svg"), text_of(tmp_path / "all-waits.svg")
    assert "CPU" in bounds
    assert "other devices" in waits
    none = {"text": "", "parts": [], "rounds": 0, "why_not": "they are old"}
    old = [changed(each, bound_by=none, wait_share_mean={}) for each in RUNS]
    written = write_figures(old, [tmp_path / "old.svg"], None, Look())
    assert not {"old-bounds.svg", "old-waits.svg"} & {path.name for path in written}


def test_shares_of_bounds_add_up_devices_and_average_runs() -> None:
    parts = Part("cpu", "a", 3.0, 0.375), Part("cpu", "b", 1.0, 0.125), Part("server", "", 4.0, 0.5)
    run = msgspec.structs.replace(RUNS[0], bound_by=BoundBy("", parts))
    assert bound_shares(run) == {"cpu": 0.5, "server": 0.5}
    assert bound_shares(msgspec.structs.replace(run, bound_by=BoundBy())) == {}
    assert mean_by_name([{"cpu": 1.0}, {"server": 1.0}]) == {"cpu": 0.5, "server": 0.5}


def test_one_figure_goes_to_the_very_file_in_the_width_of_a_column(tmp_path: Path) -> None:
    for width, inches in (("column", 3.4), ("page", 7.0)):
        path = tmp_path / f"{width}.png"
        assert write_figures(RUNS, [path], "time-to-target", Look(width=width)) == [path]  # type: ignore[arg-type]
        with Image.open(path) as image:
            assert image.width == pytest.approx(inches * 300, abs=2)


def test_a_pdf_has_a_page_per_figure_and_names_its_runs(tmp_path: Path) -> None:
    path = tmp_path / "all.pdf"
    assert write_figures(RUNS, [path], None, Look()) == [path]
    content = path.read_bytes()
    assert len(re.findall(rb"/Type /Page\b", content)) == len(FIGURES) - 1
    assert RUNS[0].run.encode() in content


def test_titles_can_be_left_out(tmp_path: Path) -> None:
    title = FIGURES["seconds"][0]
    for shown in (True, False):
        write_figures(RUNS, [tmp_path / "one.svg"], "seconds", Look(title=shown))
        assert (title in text_of(tmp_path / "one.svg")) is shown


def test_doubts_stand_on_every_figure(tmp_path: Path) -> None:
    doubtful = [changed(each, calibrated=False) for each in RUNS]
    for name in FIGURES:
        for title in (True, False):
            write_figures(doubtful, [tmp_path / "one.svg"], name, Look(title=title))
            assert "the limits were not shown to hold" in text_of(tmp_path / "one.svg")


def test_a_method_that_missed_its_target_says_so(tmp_path: Path) -> None:
    missed = [changed(each, time_to_target_s=None) if each.method == "fedavg" else each for each in RUNS]
    write_figures(missed, [tmp_path / "one.svg"], "time-to-target", Look())
    assert "not reached" in text_of(tmp_path / "one.svg")


def test_the_same_runs_give_the_same_file(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_figures(RUNS, [tmp_path / f"{name}.svg"], "accuracy-time", Look())
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


@pytest.mark.parametrize(
    ("file", "only", "cause"), [("all.gif", None, "not a name of a PDF"), ("all.png", "violins", "no figure 'violins'")]
)
def test_unknown_files_and_figures_are_refused(tmp_path: Path, file: str, only: str | None, cause: str) -> None:
    with pytest.raises(UsageError, match=cause):
        write_figures(RUNS, [tmp_path / file], only, Look())
    assert not list(tmp_path.iterdir())
