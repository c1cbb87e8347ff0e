"""`edgebed compare`: several runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from orchestrator.cli.console import console, log, print_json
from orchestrator.cli.folders import find_run
from orchestrator.records.comparison import Comparison, compare
from orchestrator.records.summary import load_summary
from orchestrator.report import write_comparison


def register(app: typer.Typer) -> None:
    app.command("compare")(command)


def command(
    runs: Annotated[list[str], typer.Argument(help="Folders of runs, or their ids under EDGEBED_RUNS (./runs).")],
    baseline: Annotated[
        str | None, typer.Option(help="Run that speed-ups refer to; the last one if not given.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with the curves of all runs to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Put RUNS side by side: time to target, rounds, stragglers, bytes, and how far the figures can be trusted."""
    folders = [find_run(run) for run in runs]
    if baseline is not None:
        base = find_run(baseline)
        folders = [folder for folder in folders if folder.resolve() != base.resolve()] + [base]
    print_comparison(folders, as_json=as_json)
    if html is not None:
        with log.status("writing the page"):
            write_comparison(folders, html)
        log.print(f"Page: {html}", soft_wrap=True, highlight=False)


def print_comparison(folders: Sequence[Path], *, as_json: bool = False) -> None:
    """The table of some runs on stdout. Speed-ups refer to the last run."""
    with log.status("reading records"):
        comparison = compare([load_summary(folder) for folder in folders])
    if as_json:
        print_json({"rows": comparison.rows, "notes": comparison.notes})
        return
    _print(comparison)


def _print(comparison: Comparison) -> None:
    """Runs are columns, so that the table stays narrow enough for a terminal."""
    table = Table(title="Runs side by side (seconds divided by the dilation)", show_header=True, header_style="bold")
    table.add_column("")
    for row in comparison.texts:
        table.add_column(escape(row["method"]), justify="right", overflow="fold")
    for key, label in comparison.labels.items():
        if key != "method":
            table.add_row(label, *(escape(row[key]) for row in comparison.texts))
    console.print(table)
    for note in comparison.notes:
        console.print(f"[yellow]Note:[/] {escape(note)}", highlight=False, soft_wrap=True)
