"""`edgebed boards measure`: a device profile that is fitted to a board, and how like the board a device under it is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.markup import escape
from rich.table import Table

from edgebed.errors import UsageError
from edgebed.models.staged import MODELS, seeded
from edgebed.wire.settings import LearningTask
from orchestrator.boards.registry import Store
from orchestrator.boards.service_folder import ServiceFolder
from orchestrator.cli.arguments import BACKENDS_SHOWN, BoardName, Classes, Json, Model, Shape, parse_shape
from orchestrator.cli.console import columns, console, log, print_json
from orchestrator.files.output import keep, try_file
from orchestrator.files.yaml_file import write_yaml
from orchestrator.fleet.backends import DEFAULT, check_backend
from orchestrator.fleet.spec.profile import BOARD, DeviceSpec, FleetSpec
from orchestrator.look_alike.bench import Job
from orchestrator.look_alike.figures import profile_values
from orchestrator.look_alike.measure import Outcome, measure, spread_cuts
from orchestrator.records.words.formatting import NONE, number, signed_percent
from orchestrator.runs.signals import run_to_end

CUTS = 3


def measure_board(
    name: BoardName,
    output: Annotated[Path | None, typer.Option(help="File of the profile.", show_default="NAME.yaml")] = None,
    model: Model = "resnet-tiny",
    shape: Shape = "1x8x8",
    classes: Classes = 10,
    batch: Annotated[int, typer.Option(min=1, help="Batch size.")] = 32,
    backend: Annotated[str, typer.Option(metavar=BACKENDS_SHOWN, help="What starts the emulated device.")] = DEFAULT,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file of the profile.")] = False,
    as_json: Json = False,
) -> None:
    """Write a device profile fitted to a board, and measure how closely an emulated device matches the board.

    Step times, rates, latency and memory are measured. The defaults are the demo's model and batch."""
    check_backend(backend)
    board = Store(ServiceFolder.of_user()).read().find(name).name
    path = output or Path(f"{board}.yaml")
    if path.exists() and not force:
        raise UsageError(f"{path} exists already", hint="--force overwrites it, --output names another file")
    try_file(path)
    plugin, task = MODELS.create({"name": model}, "--model"), LearningTask(parse_shape(shape), classes)
    plugin.check_takes(task)
    net = seeded(lambda: plugin.build(task), 0)
    job = Job(net, {"name": model}, spread_cuts(len(net), CUTS), batch)
    spec = FleetSpec(f"measure-{board}", backend, 0.0, (DeviceSpec(board, BOARD, board),), path)
    with log.status("starting") as status:
        outcome = run_to_end(measure(spec, board, job, backend, lambda line: status.update(escape(line))))
    values = profile_values(outcome.profile)
    keep(path, write_yaml(values))
    if as_json:
        print_json({"file": str(path), "profile": values, "rows": msgspec.to_builtins(outcome.rows)})
    else:
        _print(outcome, path)


def _print(outcome: Outcome, path: Path) -> None:
    limits = outcome.profile.limits
    log.print(f"{path}: {number(limits.cpus, 4)} CPUs of this host", highlight=False)
    if outcome.too_large:
        log.print("This host has too few CPUs to run the look-alike beside the orchestrator: it was not measured.")
        return
    heads = columns("figure", ">board", ">look-alike", ">error")
    table = Table(*heads, title=f"{escape(outcome.profile.name)} and its look-alike")
    for row in outcome.rows:
        error = NONE if row.error is None else signed_percent(row.error)
        table.add_row(f"{row.name}, {row.unit}", number(row.board, 4), number(row.look_alike, 4), error)
    console.print(table)
