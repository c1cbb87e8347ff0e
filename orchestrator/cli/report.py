"""`edgebed report`: writes summary, report and trace of a run again from its records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from edgebed.errors import UsageError
from orchestrator.cli.arguments import Runs
from orchestrator.cli.console import log, print_json, show
from orchestrator.report import write_figures, write_results
from orchestrator.runs.find import find_runs


def command(
    runs: Runs,
    pdf: Annotated[Path | None, typer.Option(help="Write figures for a paper to this file, one per page.")] = None,
    png: Annotated[Path | None, typer.Option(help="Write the same figures to this file, on one sheet.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Write summary.json, calibration.json, report.html and trace.json of RUNS again from their records."""
    folders = find_runs(runs)
    if len(folders) > 1 and (pdf or png):
        raise UsageError(f"--pdf or --png with {len(folders)} runs", hint="use --pdf and --png with one run only")
    summaries = [_write(folder, pdf, png) for folder in folders]
    if as_json:
        print_json(summaries[0] if len(folders) == 1 else summaries)
        return
    for folder in folders:
        for name in ("summary.json", "calibration.json", "report.html", "trace.json"):
            show(folder / name)
    for path in filter(None, (pdf, png)):
        show(path)


def _write(folder: Path, pdf: Path | None, png: Path | None) -> dict[str, Any]:
    with log.status("reading records, writing summary, report and trace"):
        summary = write_results(folder)
        if pdf is not None or png is not None:
            write_figures(folder, pdf, png)
    return summary.as_dict()
