"""`edgebed compare`: several runs side by side, runs of one method with different seeds taken together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from orchestrator.cli import comparison_tables
from orchestrator.cli.arguments import FigureName, FigureWidth, Json, PdfFile, PngFile, Runs, SvgFile, Titles, files
from orchestrator.cli.console import log, print_json, say, show
from orchestrator.records.account import load_summary
from orchestrator.records.compare import tabulate
from orchestrator.records.compare.comparison import compare
from orchestrator.records.compare.curves import Spread
from orchestrator.records.compare.groups import default_baseline, group, profiles
from orchestrator.records.compare.paired import paired
from orchestrator.records.compare.sim_error import SimError, sim_error, simulation_and_real
from orchestrator.records.reader import read
from orchestrator.records.run_index import sort
from orchestrator.records.summary import Summary
from orchestrator.records.types import SIMULATED
from orchestrator.report import write_comparison
from orchestrator.report.look import OF_RUNS, Look, check
from orchestrator.runs.find import baseline_last, find_runs
from orchestrator.runs.folder import RunFolder


def command(
    runs: Runs,
    baseline: Annotated[
        str | None,
        typer.Option(help="Speed-ups are over this method or run.", show_default="fedavg, or else the first method"),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Print every figure of every run, and all notes.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page with the curves of all runs to this file.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write one line per run to this file.")] = None,
    latex: Annotated[Path | None, typer.Option(help="Write a table of the methods for a paper to this file.")] = None,
    pdf: PdfFile = None,
    svg: SvgFile = None,
    png: PngFile = None,
    figure: FigureName = None,
    width: FigureWidth = "column",
    spread: Annotated[
        Spread, typer.Option(help="Bands: least to greatest seed, standard deviation, or 95 % interval of the mean.")
    ] = "range",
    log_time: Annotated[bool, typer.Option("--log", help="Draw accuracy over time on a logarithmic axis.")] = False,
    title: Titles = True,
    as_json: Json = False,
) -> None:
    """Put runs side by side: time to target, rounds, stragglers, bytes, and how far the figures can be trusted.

    Runs of one method with different seeds are taken together, from three on with 95 % confidence intervals
    (Student's t)."""
    paths = files(pdf, svg, png)
    check(paths, figure, OF_RUNS)
    folders = baseline_last(find_runs(runs), baseline)
    summaries = _print_runs(folders, as_json, everything, chosen=baseline is not None)
    base = summaries[-1] if baseline is not None else None
    if html is not None:
        with log.status("writing the page"):
            write_comparison(folders, html, base)
        say(f"Page: {html}")
    if csv is not None:
        _save(csv, tabulate.to_csv(compare(summaries, base).rows))
    if latex is not None:
        notes, pairs = compare(summaries, base).notes, paired(summaries, base)
        over = (base or default_baseline(summaries)).method
        _save(latex, tabulate.to_latex(group(summaries, base), over, notes, pairs))
    if paths:
        _write_figures(summaries, paths, figure, Look(width, title, spread, log_time), base)


def print_comparison(folders: Sequence[Path], *, as_json: bool) -> None:
    """The tables of runs that have just ended, and where their reports are."""
    _print_runs(folders, as_json)
    for folder in () if as_json else folders:
        show(f"Report: {folder / 'report.html'}")


def _print_runs(
    folders: Sequence[Path], as_json: bool, everything: bool = False, chosen: bool = False
) -> list[Summary]:
    """`chosen`: the last run is the baseline."""
    with log.status("reading records"):
        summaries = [load_summary(folder) for folder in folders]
        error, notes = _sim_error_of(folders, summaries), _other_starts(folders)
    base = summaries[-1] if chosen else None
    if as_json:
        _print_json(summaries, base, error, notes)
    else:
        comparison_tables.show_all(summaries, base, everything, notes)
        if error is not None:
            comparison_tables.show_sim_error(error)
    return summaries


def _other_starts(folders: Sequence[Path]) -> list[str]:
    """A note where the runs did not begin with the weights of one file."""
    series = [RunFolder(folder).read_series() for folder in folders]
    found = sorted({"" if each is None else each.weights for each in series})
    names = ", ".join(f"those of a file (SHA-256 {sha256[:16]})" if sha256 else "drawn ones" for sha256 in found)
    return [f"the runs began with different weights: {names}"] if len(found) > 1 else []


def _print_json(summaries: list[Summary], base: Summary | None, error: SimError | None, notes: list[str]) -> None:
    comparison = compare(summaries, base)
    groups, pairs = group(summaries, base), paired(summaries, base)
    tables = {"groups": groups, "paired": pairs, "profiles": profiles(summaries)}
    more: dict[str, Any] = msgspec.to_builtins(tables)
    if error is not None:
        more["sim_error"] = _as_plain(error)
    print_json({"rows": comparison.rows, "notes": [*notes, *comparison.notes], **more})


def _write_figures(
    summaries: list[Summary], paths: Sequence[Path], only: str | None, look: Look, base: Summary | None
) -> None:
    from orchestrator.report.paper_figures import write_figures  # matplotlib takes its time to load

    with log.status("drawing figures"):
        written = write_figures(summaries, paths, only, look, base)
    for path in written:
        say(f"Written: {path}")


def _save(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    say(f"Written: {path}")


# ---- a simulation beside the run that it simulates ----


def _sim_error_of(folders: Sequence[Path], summaries: Sequence[Summary]) -> SimError | None:
    """The error of a simulation, where the folders are one and a real run of the same method."""
    if len(folders) != 2 or sum(summary.enforcement == SIMULATED for summary in summaries) != 1:
        return None
    pair = simulation_and_real([sort(read(folder / "records.jsonl")) for folder in folders])
    return None if pair is None else sim_error(*pair)


def _as_plain(error: SimError) -> dict[str, Any]:
    """For --json."""
    plain: dict[str, Any] = msgspec.to_builtins(error)
    for row, each in zip(plain["rounds"], error.rounds, strict=True):
        row["error"] = each.error
    return plain
