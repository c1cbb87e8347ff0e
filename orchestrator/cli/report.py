"""`edgebed report`: write summary, report and trace of a run again from its records."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.console import console, log, print_json
from orchestrator.cli.folders import find_run
from orchestrator.report import write_results


def register(app: typer.Typer) -> None:
    app.command("report")(command)


def command(
    run: Annotated[str, typer.Argument(help="Folder of a run, or its id under EDGEBED_RUNS (./runs).")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Write summary.json, calibration.json, report.html and trace.json of RUN again from its records."""
    folder = find_run(run)
    with log.status("reading records, writing summary, report and trace"):
        summary = write_results(folder)
    if as_json:
        print_json(summary)
    else:
        for name in ("summary.json", "calibration.json", "report.html", "trace.json"):
            console.print(folder / name, soft_wrap=True, highlight=False)
