"""`edgebed compare`: several runs side by side, runs of one method with different seeds taken together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from orchestrator.cli.arguments import Json, Runs
from orchestrator.cli.console import columns, console, log, print_json, say, show
from orchestrator.records.account import load_summary
from orchestrator.records.compare import tabulate
from orchestrator.records.compare.comparison import COLUMNS, Comparison, compare
from orchestrator.records.compare.curves import Spread
from orchestrator.records.compare.groups import Group, ProfileRow, by_key, group, profiles
from orchestrator.records.compare.paired import Paired, paired
from orchestrator.records.compare.sim_error import SimError, sim_error, simulation_and_real
from orchestrator.records.reader import read
from orchestrator.records.run_index import sort
from orchestrator.records.summary import Summary
from orchestrator.records.types import SIMULATED
from orchestrator.records.words.formatting import NONE, known, percent, seconds, signed_percent
from orchestrator.report import write_comparison
from orchestrator.report.look import Look, Width
from orchestrator.runs.find import baseline_last, find_runs

MOST_COLUMNS = 6
"""Runs that fit side by side into a terminal."""

CONDITIONS = ("enforcement", "speed", "dilation", "late_rounds", "disturbed_rounds", "calibrated")
"""What is shown of the runs of a method taken together, each value once."""

SHOWN_SHARE = 0.005
"""In the tables of a simulation's error, a phase whose error is a smaller share of its device's round is not shown."""


def command(
    runs: Runs,
    baseline: Annotated[
        str | None, typer.Option(help="Method or run that speed-ups refer to; the last run if not given.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with the curves of all runs to this file.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write one line per run to this file.")] = None,
    latex: Annotated[Path | None, typer.Option(help="Write a table of the methods for a paper to this file.")] = None,
    pdf: Annotated[Path | None, typer.Option(help="Write figures for a paper to this file, one per page.")] = None,
    svg: Annotated[Path | None, typer.Option(help="Write the same figures, one file each: FILE-name.svg.")] = None,
    png: Annotated[Path | None, typer.Option(help="Write the same figures, one file each: FILE-name.png.")] = None,
    figure: Annotated[str | None, typer.Option(help="Write this figure only; to the very file, then.")] = None,
    width: Annotated[Width, typer.Option(help="Width of the figures: 3.4 inches (column) or 7 (page).")] = "column",
    spread: Annotated[
        Spread, typer.Option(help="Bands: least to greatest seed, standard deviation, or 95 % interval of the mean.")
    ] = "range",
    title: Annotated[bool, typer.Option(help="Titles above the figures.")] = True,
    as_json: Json = False,
) -> None:
    """Put RUNS side by side: time to target, rounds, stragglers, bytes, and how far the figures can be trusted.

    Runs of one method with different seeds are taken together, with 95 % confidence intervals (Student's t)."""
    folders = baseline_last(find_runs(runs), baseline)
    summaries = _print_runs(folders, as_json)
    if html is not None:
        with log.status("writing the page"):
            write_comparison(folders, html)
        say(f"Page: {html}")
    if csv is not None:
        _save(csv, tabulate.to_csv(compare(summaries).rows))
    if latex is not None:
        notes, base = compare(summaries).notes, summaries[-1].method
        _save(latex, tabulate.to_latex(group(summaries), base, notes, paired(summaries)))
    if paths := [path for path in (pdf, svg, png) if path is not None]:
        _write_figures(summaries, paths, figure, Look(width, title, spread))


def print_comparison(folders: Sequence[Path], *, as_json: bool = False) -> None:
    """The tables of runs that have just ended, and where their reports are. Speed-ups refer to the last run."""
    _print_runs(folders, as_json)
    for folder in () if as_json else folders:
        show(f"Report: {folder / 'report.html'}")


def _print_runs(folders: Sequence[Path], as_json: bool) -> list[Summary]:
    with log.status("reading records"):
        summaries = [load_summary(folder) for folder in folders]
        error = _sim_error_of(folders)
    _print_all(summaries, as_json, error)
    return summaries


def _print_all(summaries: list[Summary], as_json: bool, error: SimError | None) -> None:
    comparison, groups, stragglers = compare(summaries), group(summaries), profiles(summaries)
    pairs = paired(summaries)
    if as_json:
        tables = {"groups": groups, "paired": pairs, "profiles": stragglers}
        more: dict[str, Any] = msgspec.to_builtins(tables)
        if error is not None:
            more["sim_error"] = _as_plain(error)
        print_json({"rows": comparison.rows, "notes": comparison.notes, **more})
        return
    if len(groups) < len(summaries):
        _print_groups(groups, list(by_key(summaries).values()), summaries[-1].method)
    elif len(summaries) <= MOST_COLUMNS:
        _print(comparison)
    show("Runs, in order:")
    for run in summaries:  # not in the table: an id that is broken cannot be copied
        show(f"  {run.run}, {run.method}, seed {run.seed}")
    if pairs:
        _print_pairs(pairs)
    _print_profiles(stragglers)
    if error is not None:
        _print_sim_error(error)
    for note in comparison.notes:
        console.print(f"[yellow]Note:[/] {escape(note)}", highlight=False, soft_wrap=True)


def _print(comparison: Comparison) -> None:
    """Runs are columns, so that the table stays narrow enough for a terminal."""
    table = Table(title="Runs side by side (seconds divided by the dilation)", show_header=True, header_style="bold")
    table.add_column("")
    for row in comparison.texts:
        table.add_column(escape(row["method"]), justify="right", overflow="fold")
    for key, label in comparison.labels.items():
        if key not in ("method", "run"):
            table.add_row(label, *(escape(row[key]) for row in comparison.texts))
    console.print(table)


def _print_groups(groups: list[Group], runs: list[list[Summary]], baseline: str) -> None:
    """Methods are columns, as runs are. Below the figures stands how the runs of each were made."""
    table = Table(title=f"Means over seeds with 95 % intervals (Student's t); speed-up over {escape(baseline)}")
    table.add_column("")
    for one in groups:
        table.add_column(escape(one.method), justify="right")
    for label, text in tabulate.COLUMNS[1:]:
        table.add_row(label, *(escape(text(one)) for one in groups))
    for key in CONDITIONS:
        column = COLUMNS[key]
        found = [dict.fromkeys(known(column.of(run), column.show) for run in own) for own in runs]
        table.add_row(column.label, *(escape(", ".join(texts)) for texts in found))
    console.print(table)


def _print_pairs(pairs: list[Paired]) -> None:
    heads = columns(*(name if name == "method" else f">{name}" for name, _ in tabulate.PAIRED))
    table = Table(*heads, box=SIMPLE_HEAD, title=escape(tabulate.about_pairs(pairs)))
    for each in pairs:
        table.add_row(*(escape(text(each)) for _, text in tabulate.PAIRED))
    console.print(table)
    for line in filter(None, map(tabulate.time_in_words, pairs)):
        console.print(escape(line), highlight=False)


def _print_profiles(rows: list[ProfileRow]) -> None:
    heads = columns("method", "profile", ">straggler in rounds", ">others waited, per run", "why")
    table = Table(*heads, box=SIMPLE_HEAD, title="Stragglers by profile of device")
    for row in rows:
        table.add_row(*map(escape, tabulate.profile_row(row)))
    if rows:
        console.print(table)


def _write_figures(summaries: list[Summary], paths: Sequence[Path], only: str | None, look: Look) -> None:
    from orchestrator.report.paper_figures import write_figures  # matplotlib takes its time to load

    with log.status("drawing figures"):
        written = write_figures(summaries, paths, only, look)
    for path in written:
        say(f"Written: {path}")


def _save(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    say(f"Written: {path}")


# ---- a simulation beside the run that it simulates ----


def _sim_error_of(folders: Sequence[Path]) -> SimError | None:
    """The error of a simulation, where the folders are one and a real run of the same method."""
    if len(folders) != 2:
        return None
    if sum(load_summary(folder).enforcement == SIMULATED for folder in folders) != 1:
        return None
    pair = simulation_and_real([sort(read(folder / "records.jsonl")) for folder in folders])
    return None if pair is None else sim_error(*pair)


def _as_plain(error: SimError) -> dict[str, Any]:
    """For --json."""
    plain: dict[str, Any] = msgspec.to_builtins(error)
    for row, each in zip(plain["rounds"], error.rounds, strict=True):
        row["error"] = each.error
    return plain


def _print_sim_error(error: SimError) -> None:
    """Two tables: the rounds in a line, devices and phases in rows."""
    show(
        f"Error of the simulation over {len(error.rounds)} rounds: median {percent(error.median)}, "
        f"90th percentile {percent(error.p90)}, all rounds together {signed_percent(error.total_error)}; "
        f"{percent(error.same_cuts, 0)} of the assignments are the same"
    )
    heads = columns("device", "phase", ">simulated", ">real", ">error", ">of its round")
    table = Table(*heads, title="Devices: medians of simulation and real run", header_style="bold")
    for row in error.devices:
        if row.phase != "whole" and abs(row.share) < SHOWN_SHARE:
            continue
        first = row.phase == "whole"
        relative = signed_percent(row.simulated_s / row.real_s - 1) if row.real_s else NONE
        table.add_row(
            escape(row.device) if first else "",
            row.phase,
            seconds(row.simulated_s),
            seconds(row.real_s),
            relative,
            signed_percent(row.share),
            style="bold" if first else "",
        )
    console.print(table)
