"""`edgebed reference`: record, show and compare what the pieces of a device's work cost on one core."""

from __future__ import annotations

import platform
import tempfile
from pathlib import Path
from statistics import mean
from typing import Annotated

import torch
import typer
from rich.markup import escape
from rich.table import Table

from edgebed.device.pieces import BATCH, FIRST, JOINED, STEP
from edgebed.errors import UsageError
from edgebed.wire.topics import check_name
from orchestrator.cli.arguments import BackendOption, Quiet
from orchestrator.cli.console import columns, console, log, show
from orchestrator.cli.run import watching
from orchestrator.experiment import load
from orchestrator.files.output import try_file
from orchestrator.files.shipped import shipped
from orchestrator.fleet.host.reference_loop import loop_times
from orchestrator.records.reader import read
from orchestrator.records.run_index import sort
from orchestrator.records.words.formatting import NONE, number, seconds, size
from orchestrator.references.layer_profile import measure
from orchestrator.references.recording import record as make
from orchestrator.references.reference import SUFFIX, Reference, known_references, load_reference, save_reference
from orchestrator.runs import session
from orchestrator.runs.find import complete_run, find_run
from orchestrator.runs.request import Request
from orchestrator.runs.signals import run_to_end

RECORDED = [shipped("profiles") / "experiments" / f"{name}.yaml" for name in ("reference", "demo")]
"""The experiments whose pieces a recording knows, unless others are named."""

REFERENCE = f"A reference: the name of one that comes with Edgebed, or a file that ends in {SUFFIX}."
Name = Annotated[str, typer.Argument(help=REFERENCE)]


commands = typer.Typer(help="Record and show references: what a device's CPU second is worth.", no_args_is_help=True)


@commands.command()
def record(
    name: Annotated[str, typer.Argument(help="Name of the new reference.")],
    experiments: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="EXPERIMENT...", help="Experiment files to run.", show_default="those that come with Edgebed"
        ),
    ] = None,
    run: Annotated[
        list[str] | None,
        typer.Option(
            "--run", metavar="RUN", help="Record from RUN, and run nothing. Repeatable.", autocompletion=complete_run
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=3, help="Rounds of each method.")] = 6,
    backend: BackendOption = None,
    core: Annotated[str, typer.Option(help="What the core is, in words, for the file.")] = "",
    out: Annotated[Path | None, typer.Option(help="The file.", show_default=f"NAME{SUFFIX}")] = None,
    quiet: Quiet = False,
) -> None:
    """Run experiments at the speed of this host, and keep what each piece of the devices' work cost.

    With --run, the pieces are those of runs that were made before, on this host or on boards."""
    check_name(name, "reference")
    path = out or Path(f"{name}{SUFFIX}")
    try_file(path)
    said = {"core": core or platform.processor() or platform.machine()}
    if run:
        runs = [sort(read(find_run(each) / "records.jsonl")) for each in run]
        made = make(name, runs, {}, said)
    else:
        with tempfile.TemporaryDirectory(prefix="edgebed-reference-") as folder, watching(quiet, live=False) as watch:
            folders, index = [], [loop_times().s]
            for experiment in experiments or RECORDED:
                changes = [f"training.rounds={rounds}", "training.stop_at_target=false", "speed=host"]
                wanted = load(experiment, changes if load(experiment).server else [*changes, "server={cpus: 1}"])
                request = Request(wanted, experiment, Path(folder), backend=backend, each_piece=True)
                folders += run_to_end(session.run_experiment(request, watch))
                index.append(loop_times().s)
            runs = [sort(read(folder / "records.jsonl")) for folder in folders]
        with log.status("measuring layers"):
            layers = measure()
        said["torch_simd"] = torch.backends.cpu.get_cpu_capability()
        made = make(name, runs, layers, said, mean(index))
    save_reference(made, path)
    _print(made)
    show(f"Written: {path}")


@commands.command("show")
def show_reference(
    name: Annotated[
        str,
        typer.Argument(metavar="REFERENCE", help=REFERENCE, show_default="list those that come with Edgebed"),
    ] = "",
) -> None:
    """Print a reference."""
    if name:
        _print(load_reference(name))
        return
    for known in known_references():
        reference = load_reference(known)
        show(f"{known}: {reference.origin.get('core', '')}, {len(reference.work)} kinds of tasks")


@commands.command()
def compare(one: Name, other: Name) -> None:
    """Print what the pieces of two references cost, and their ratio."""
    first, second = load_reference(one), load_reference(other)
    shared = [key for key in first.work if key in second.work]
    if not shared:
        raise UsageError(f"{first.name} and {second.name} have no task in common", hint="record the same experiments")
    for key in shared:
        show(f"\n{key}")
        table = Table(*columns("piece", ">size", f">{first.name}", f">{second.name}", ">ratio"), box=None)
        theirs = {(kind, each.size): each.mean_s for kind, sizes in second.work[key].items() for each in sizes}
        for kind, sizes in first.work[key].items():
            for each in sizes:
                if (kind, each.size) in theirs and (taken := theirs[kind, each.size]) > 0:
                    cells = (seconds(each.mean_s), seconds(taken), number(each.mean_s / taken, 3))
                    table.add_row(escape(kind), _size(kind, each.size), *cells)
        console.print(table)
    show(f"ratio: {first.name} ÷ {second.name}; above 1, {first.name} takes longer.")
    show(f"index: {seconds(first.index_s)} and {seconds(second.index_s)}")


def _size(kind: str, known: float) -> str:
    """With its unit."""
    if kind.removeprefix(FIRST) in (*BATCH, "more", STEP, JOINED):
        return f"{known:g} samples"
    return NONE if kind == "finish" else size(known)


def _print(reference: Reference) -> None:
    origin = ", ".join(f"{key} {value}" for key, value in reference.origin.items() if key != "runs" and value)
    show(f"{reference.name}: {origin}")
    for key, kinds in reference.work.items():
        show(f"\n{key}")
        table = Table(*columns("piece", ">size", ">count", ">mean", ">sd ÷ mean", ">p99", ">lag"), box=None)
        for kind, sizes in kinds.items():
            for each in sizes:
                spread = number(each.sd_s / each.mean_s, 2) if each.mean_s > 0 else "–"
                p99 = seconds(each.quantiles_s[-1]) if each.quantiles_s else "–"
                row = (str(each.count), seconds(each.mean_s), spread, p99, number(each.lag, 2))
                table.add_row(escape(kind), _size(kind, each.size), *row)
        console.print(table)
    show("lag: correlation of a piece with the next one of its task. 0: noise; near 1: the core drifted.")
    if reference.layers:
        error = reference.unseen.error
        show(f"Other tasks by their layers, ± {error:.0%} (each recorded task told by the others).")
    else:
        show("Other tasks by the index: what layers cost is not known.")
    show(f"Index: {seconds(reference.index_s)} for a piece of the reference loop.")
