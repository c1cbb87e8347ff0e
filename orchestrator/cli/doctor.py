"""`edgebed doctor`: what this host can do, and a hint for everything that is missing; exit code 0 or 1."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from orchestrator.cli.arguments import BackendOption, Json
from orchestrator.cli.console import columns, console, log, print_json
from orchestrator.fleet.backends import DEFAULT
from orchestrator.fleet.host.checkup import Check, FleetFit, check, fit, fit_fleet
from orchestrator.fleet.host.facts import gather
from orchestrator.fleet.host.reference_loop import LOOK_S
from orchestrator.fleet.named import backend_class
from orchestrator.fleet.spec.profile import load_fleet
from orchestrator.fleet.swarm.checkup import Swarm, check_swarm, fit_swarm
from orchestrator.records.timeline.host_index import index_text
from orchestrator.records.words.formatting import NONE, number
from orchestrator.records.words.vocabulary import UNLIMITED
from orchestrator.runs.find import runs_folder
from orchestrator.runs.speed import measured_index


def command(
    fleet: Annotated[Path | None, typer.Option(help="Check which devices of this fleet file fit here.")] = None,
    backend: BackendOption = None,
    as_json: Json = False,
) -> None:
    """Check what this host can do; start nothing. Exit code 1 if the backend or the fleet lacks something."""
    spec = load_fleet(fleet) if fleet else None
    backend = backend or (spec.backend if spec else DEFAULT)
    needs = backend_class(backend).needs
    with log.status("checking this host"):
        facts, swarm = gather(runs_folder()), _swarm()
        speed = Check("speed", index_text(measured_index(seconds=LOOK_S)))
    rows = [*check(facts, needs, len(spec.devices) if spec else 0), speed, *check_swarm(swarm, needs.swarm)]
    fitting = None if spec is None else fit_swarm(spec, swarm) if needs.swarm else fit_fleet(spec, facts, needs)
    healthy = fit(rows) and (fitting is None or fitting.fits)
    if as_json:
        found = {"backend": backend, "healthy": healthy, "checks": rows, "fleet": fitting, "facts": facts}
        print_json(msgspec.to_builtins(found))
    else:
        console.print(_table(backend, rows))
        if fitting is not None:
            console.print(_fleet_table(str(fleet), fitting))
        console.print(_verdict(backend, healthy))
    if not healthy:
        raise typer.Exit(1)


def _swarm() -> Swarm:
    try:
        from orchestrator.fleet.swarm.admission import find_swarm
    except ImportError:
        return Swarm(
            error="the docker SDK is not installed",
            hint="pip install './edgebed-VERSION-py3-none-any.whl[orchestrator]'",
        )
    return find_swarm()


def _table(backend: str, rows: list[Check]) -> Table:
    heads = ("", "what", "found", "problem and hint")
    table = Table(*heads, box=SIMPLE_HEAD, title=f"this host, for the backend {backend}")
    for row in rows:
        mark = "[green]ok[/]" if not row.lack else "[bold red]LACK[/]" if row.needed else "[yellow]note[/]"
        missing = f"{row.lack.rstrip('.')}. Hint: {row.hint}" if row.lack else ""
        table.add_row(mark, row.name, escape(row.found), escape(missing))
    return table


def _fleet_table(name: str, fitting: FleetFit) -> Table:
    dilation = "no dilation fits" if fitting.dilation is None else f"dilation {number(fitting.dilation)}"
    hint = f" Hint: {fitting.hint}" if fitting.hint else ""
    said = ". ".join(text for text in (fitting.lack, fitting.warning) if text)
    heads = columns("device", ">CPUs", ">up Mbit/s", ">down Mbit/s", ">memory MiB", ">latency ms", "")
    table = Table(*heads, box=SIMPLE_HEAD, title=f"{name} here: {dilation}", caption=escape(said + hint) or None)
    for device in fitting.devices:
        limits = device.limits
        rates = (number(rate / 1e6, 4) for rate in (limits.uplink_bit_s, limits.downlink_bit_s))
        verdict = f"[bold red]{escape(device.lack)}[/]" if device.lack else "[green]fits[/]"
        cells = (number(limits.cpus, 4), *rates, str(limits.memory_mib), number(limits.latency_ms))
        table.add_row(device.name, *([*[NONE] * 5, UNLIMITED] if limits.unlimited else [*cells, verdict]))
    return table


def _verdict(backend: str, healthy: bool) -> str:
    if healthy:
        return f"This host has all that the backend {backend} needs. `edgebed calibrate` measures whether limits hold."
    return f"[bold red]Something is missing that the backend {backend} needs.[/]"
