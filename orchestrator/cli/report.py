"""`edgebed report`: writes summary, report and trace of a run again from its records."""

from __future__ import annotations

from typing import Annotated

import typer

from edgebed.errors import UsageError
from orchestrator.cli.arguments import FigureName, FigureWidth, PdfFile, PngFile, Runs, SvgFile, Titles, files
from orchestrator.cli.console import log, print_json, show
from orchestrator.report import write_figures, write_results
from orchestrator.report.look import OF_ONE_RUN, Look, check
from orchestrator.runs.find import find_runs


def command(
    runs: Runs,
    pdf: PdfFile = None,
    svg: SvgFile = None,
    png: PngFile = None,
    figure: FigureName = None,
    round_: Annotated[
        int | None,
        typer.Option("--round", min=1, help="Draw this round.", show_default="the round of median length"),
    ] = None,
    width: FigureWidth = "column",
    title: Titles = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Write summary.json, calibration.json, report.html and trace.json of each RUN again from its records."""
    folders, paths = find_runs(runs), files(pdf, svg, png)
    check(paths, figure, OF_ONE_RUN)
    if len(folders) > 1 and paths:
        raise UsageError(
            f"figures of {len(folders)} runs", hint="--pdf, --svg and --png take one run; see also compare"
        )
    with log.status("reading records, writing summary, report and trace"):
        summaries = [write_results(folder).as_dict() for folder in folders]
        written = write_figures(folders[0], paths, figure, Look(width, title), round_) if paths else []
    if as_json:
        print_json(summaries[0] if len(folders) == 1 else summaries)
        return
    for folder in folders:
        for name in ("summary.json", "calibration.json", "report.html", "trace.json"):
            show(folder / name)
    for path in written:
        show(path)
