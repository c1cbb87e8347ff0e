"""`edgebed calibrate`: compares requested with measured CPU and link rates of every device; exit code 0 or 1."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from orchestrator.boards.members import with_facts
from orchestrator.calibration.calibrate import calibrate
from orchestrator.cli.arguments import BackendOption, DilationOption, GrainOption, Json
from orchestrator.cli.console import columns, console, log, print_json
from orchestrator.experiment import Grain
from orchestrator.fleet.spec.profile import FleetSpec, load_fleet
from orchestrator.records.shown.calibrated import calibration_row
from orchestrator.records.types import Calibrated
from orchestrator.records.words.formatting import percent
from orchestrator.records.words.vocabulary import CALIBRATION, held_by
from orchestrator.runs import session
from orchestrator.runs.signals import run_to_end


def command(
    fleet: Annotated[Path, typer.Argument(help="The fleet file.")],
    backend: BackendOption = None,
    dilation: DilationOption = "auto",
    grain: GrainOption = "pacing",
    short: Annotated[
        bool, typer.Option("--short", help="The short form (under 10 s) that runs before every run.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure whether every device of FLEET gets CPU and link rates of its profile; exit code 1 if one does not."""
    spec = with_facts(load_fleet(fleet))
    outcome = run_to_end(_calibrate(spec, backend, dilation, grain, short))
    if as_json:
        print_json(msgspec.to_builtins(outcome))
    else:
        console.print(_table(outcome))
        console.print(_verdict(outcome.rows))
    if not outcome.passed:
        raise typer.Exit(1)


class Outcome(msgspec.Struct, frozen=True):
    """What the command prints."""

    fleet: str
    enforcement: str
    dilation: float
    passed: bool
    rows: Sequence[Calibrated]


async def _calibrate(spec: FleetSpec, backend: str | None, dilation: str, grain: Grain, short: bool) -> Outcome:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f} %"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=log, transient=True) as progress:
        task = progress.add_task("starting", total=1.0)

        def notify(line: str) -> None:
            progress.update(task, description=escape(line))

        standing = session.standing_fleet(spec, backend=backend, dilation=dilation, grain=grain, notify=notify)
        async with standing as controller:
            result = await calibrate(
                controller.backend,
                controller.limits,
                controller.membership,
                short=short,
                on_row=lambda row: None,
                on_item=lambda share, left_s: progress.update(
                    task, completed=share, description=f"calibrating, about {left_s:.0f} s left"
                ),
            )
            return Outcome(spec.name, str(controller.enforcement), controller.dilation, result.passed, result.rows)


def _table(outcome: Outcome) -> Table:
    dilated = f"; every limit divided by D = {outcome.dilation:.3g}" if outcome.dilation > 1 else ""
    heads = columns(*(f">{head}" if head in ("requested", "measured", "error") else head for head in CALIBRATION))
    table = Table(*heads, box=SIMPLE_HEAD, title=f"{outcome.fleet}: {held_by(outcome.enforcement)}{dilated}")
    for row in sorted(outcome.rows, key=lambda r: r.device):
        table.add_row(*_cells(row))
    return table


def _cells(row: Calibrated) -> list[str]:
    """Narrower than on pages: a verdict is one word."""
    *cells, _ = calibration_row(row)
    cells[2] = cells[2].replace(" connections", " conn.").replace(" connection", " conn.")
    return [*cells, ("[green]holds[/]" if row.passed else "[bold red]FAILS[/]") if row.judged else "[dim]-[/]"]


def _verdict(rows: Sequence[Calibrated]) -> str:
    judged = [row for row in rows if row.judged]
    failed = [row for row in judged if not row.passed]
    if not judged:
        return "No row is judged: a real board has no limits. The rows say what was measured."
    if not failed:
        worst = max((abs(r.error) for r in judged if "64 KB" not in r.condition), default=0.0)
        return f"All {len(judged)} judged rows hold; the largest error is {percent(worst)} (without 64 KB transfers)."
    causes = "\n".join(f"  {r.device}, {r.quantity}, {r.condition}: {escape(r.cause)}" for r in failed)
    return f"[bold red]{len(failed)} of {len(judged)} judged rows fail:[/]\n{causes}"
