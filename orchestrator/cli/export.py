"""`edgebed export`: the records of a run in the formats of other tools."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from edgebed.errors import UsageError, counted
from orchestrator.cli.arguments import Run
from orchestrator.cli.console import log, show
from orchestrator.dashboard.tail import RecordTail
from orchestrator.export.columns import write_csv, write_parquet
from orchestrator.export.curves import points
from orchestrator.export.mlflow import MLflow
from orchestrator.export.spans import write_spans
from orchestrator.export.tensorboard import TensorBoard
from orchestrator.records.account import load_summary
from orchestrator.records.live.summing import summary_of
from orchestrator.records.reader import read
from orchestrator.records.recorder import is_being_written
from orchestrator.records.run_index import sort
from orchestrator.records.shown.metrics import exposition
from orchestrator.runs.find import find_run

FOLLOW_S = 2.0
"""Between two looks at a run that goes on."""

Target = type[TensorBoard] | type[MLflow]


def command(
    run: Run,
    csv: Annotated[Path | None, typer.Option(help="Folder for one CSV file per type of record.")] = None,
    parquet: Annotated[Path | None, typer.Option(help="Folder for one Parquet file per type of record.")] = None,
    tensorboard: Annotated[Path | None, typer.Option(help="Folder for TensorBoard's event file.")] = None,
    mlflow: Annotated[
        str | None, typer.Option(metavar="<uri|dir>", help="MLflow: a tracking URI (http://…), or a folder.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Write rounds to TensorBoard and MLflow as they end, until the run does.")
    ] = False,
    prometheus: Annotated[Path | None, typer.Option(help="File for metrics in Prometheus' text format.")] = None,
    otlp: Annotated[
        str | None,
        typer.Option(metavar="<url|path>", help="OpenTelemetry spans: a collector's http://…/v1/traces, or a file."),
    ] = None,
) -> None:
    """Write the records of RUN for other tools, in one or several formats. For Perfetto, use the run's trace.json."""
    folder = find_run(run)
    if not any((csv, parquet, tensorboard, mlflow, prometheus, otlp)):
        hint = "give --csv, --parquet, --tensorboard, --mlflow, --prometheus or --otlp"
        raise UsageError("no format was named", hint=hint)
    wanted: list[tuple[Target, object]] = [(TensorBoard, tensorboard), (MLflow, mlflow)]
    _draw(folder, [(make, str(target)) for make, target in wanted if target is not None], follow=follow)
    with log.status("reading records"):
        records = read(folder / "records.jsonl")
    if csv is not None:
        show(f"{csv}: {len(write_csv(records, csv))} CSV files")
    if parquet is not None:
        show(f"{parquet}: {len(write_parquet(records, parquet))} Parquet files")
    if prometheus is not None:
        prometheus.write_text(exposition([load_summary(folder)]), encoding="utf-8")
        show(f"{prometheus}: metrics")
    if otlp is not None:
        show(f"{otlp}: {write_spans(sort(records), otlp)} spans")


def _draw(folder: Path, targets: list[tuple[Target, str]], *, follow: bool) -> None:
    """Write curves of a run as far as it is, each point once; with `follow`, until the run ends. The newest round then
    waits for the next one: what its devices say of it may still come."""
    tail, written, made = RecordTail(folder), set[tuple[str, int]](), list[TensorBoard | MLflow]()
    going_on = True
    while targets and going_on:
        if going_on := follow and is_being_written(tail.path):
            tail.catch_up()
        summary = summary_of(tail.state) if going_on and tail.state.sessions else load_summary(folder)
        made = made or [make(summary, target) for make, target in targets]
        last = len(summary.rounds) - going_on
        new = [p for p in points(summary) if p[2] <= last and (p[0], p[2]) not in written]
        written |= {(tag, step) for tag, _, step, _ in new}
        for each in made:
            each.write(new)
        if going_on:
            time.sleep(FOLLOW_S)
    for each, (_, target) in zip(made, targets, strict=True):
        each.close(summary)
        show(f"{target}: curves of {counted(len(summary.rounds), 'round')}")
