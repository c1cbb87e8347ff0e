"""`edgebed export`: the records of a run in the formats of other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgebed.errors import UsageError
from orchestrator.cli.arguments import Run
from orchestrator.cli.console import log, show
from orchestrator.export.columns import write_csv, write_parquet
from orchestrator.export.spans import write_spans
from orchestrator.export.tensorboard import write_tensorboard
from orchestrator.records.account import load_summary
from orchestrator.records.reader import read
from orchestrator.records.run_index import sort
from orchestrator.records.shown.metrics import exposition
from orchestrator.runs.find import find_run


def command(
    run: Run,
    csv: Annotated[Path | None, typer.Option(help="Folder for one CSV file per type of record.")] = None,
    parquet: Annotated[Path | None, typer.Option(help="Folder for one Parquet file per type of record.")] = None,
    tensorboard: Annotated[Path | None, typer.Option(help="Folder for TensorBoard's event file.")] = None,
    prometheus: Annotated[Path | None, typer.Option(help="File for metrics in Prometheus' text format.")] = None,
    otlp: Annotated[
        str | None,
        typer.Option(metavar="<url|path>", help="OpenTelemetry spans: a collector's http://…/v1/traces, or a file."),
    ] = None,
) -> None:
    """Write the records of RUN for other tools, in one or several formats. For Perfetto, use the run's trace.json."""
    folder = find_run(run)
    if not any((csv, parquet, tensorboard, prometheus, otlp)):
        raise UsageError("no format was named", hint="give --csv, --parquet, --tensorboard, --prometheus or --otlp")
    with log.status("reading records"):
        records = read(folder / "records.jsonl")
    if csv is not None:
        show(f"{csv}: {len(write_csv(records, csv))} CSV files")
    if parquet is not None:
        show(f"{parquet}: {len(write_parquet(records, parquet))} Parquet files")
    if tensorboard is not None:
        write_tensorboard(load_summary(folder), tensorboard)
        show(f"{tensorboard}: tensorboard --logdir")
    if prometheus is not None:
        prometheus.write_text(exposition([load_summary(folder)]), encoding="utf-8")
        show(f"{prometheus}: metrics")
    if otlp is not None:
        show(f"{otlp}: {write_spans(sort(records), otlp)} spans")
