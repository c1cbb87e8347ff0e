"""`edgebed report`: write summary, report and trace of a run again from its records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.console import console, log, print_json
from orchestrator.cli.folders import find_run
from orchestrator.report import write_figures, write_results


def register(app: typer.Typer) -> None:
    app.command("report")(command)


def command(
    run: Annotated[str, typer.Argument(help="Folder of a run, or its id under EDGEBED_RUNS (./runs).")],
    pdf: Annotated[Path | None, typer.Option(help="Write figures for papers to this file, one per page.")] = None,
    png: Annotated[Path | None, typer.Option(help="Write the same figures to this file, on one sheet.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Write summary.json, calibration.json, report.html and trace.json of RUN again from its records."""
    folder = find_run(run)
    with log.status("reading records, writing summary, report and trace"):
        summary = write_results(folder)
        if pdf is not None or png is not None:
            write_figures(folder, pdf, png)
    if as_json:
        print_json(summary)
    else:
        for name in ("summary.json", "calibration.json", "report.html", "trace.json"):
            console.print(folder / name, soft_wrap=True, highlight=False)
        for path in (pdf, png):
            if path is not None:
                console.print(path, soft_wrap=True, highlight=False)
