"""`edgebed fleet up|ps|down|ls|push-image`: a throttled fleet without a run, kept by a process in the background; all
fleets of this host; the agent's image on the nodes of a Swarm."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.markup import escape
from rich.status import Status
from rich.table import Table

from edgebed.errors import FleetError, UsageError, counted
from orchestrator.cli.arguments import (
    BackendOption,
    Broker,
    BrokerCA,
    BrokerUsers,
    DilationOption,
    GrainOption,
    Json,
    own_broker,
)
from orchestrator.cli.console import columns, console, log, print_json, print_whole
from orchestrator.fleet.backends import check_backend
from orchestrator.fleet.base import Enforcement, Held
from orchestrator.fleet.host import cpus as host_cpus
from orchestrator.fleet.host.cores import usable_cores
from orchestrator.fleet.spec.capacity import factor_of
from orchestrator.fleet.spec.profile import FleetSpec, Limits, load_fleet
from orchestrator.records.timeline.board import BOARD_COLUMNS, board_row
from orchestrator.records.words.formatting import NONE, fixed, number, seconds, size
from orchestrator.records.words.vocabulary import UNLIMITED, held_by, threads_note
from orchestrator.runs import daemon
from orchestrator.runs.daemon import DeviceInFleet, FleetState

Fleet = Annotated[Path, typer.Argument(help="The fleet file.")]


commands = typer.Typer(help="Start, show and stop a throttled fleet without a run.", no_args_is_help=True)


@commands.command()
def up(
    fleet: Fleet,
    backend: BackendOption = None,
    dilation: DilationOption = "auto",
    grain: GrainOption = "pacing",
    broker: Broker = None,
    broker_ca: BrokerCA = None,
    broker_users: BrokerUsers = None,
) -> None:
    """Start every device of FLEET. Return when all are running with their limits."""
    own = own_broker(broker, broker_ca, broker_users)
    spec = load_fleet(fleet)
    check_backend(backend or spec.backend)
    factor_of(dilation, 1.0)
    place = daemon.FleetFolder.of(spec)
    if place.alive():
        raise UsageError(f"the fleet {spec.name} is already running", hint=f"edgebed fleet down {fleet}")
    with log.status("starting") as status:
        pid = daemon.spawn(spec, place, daemon.Wanted(backend, dilation, own, grain))
        try:
            _until_ready(place, status)
        except KeyboardInterrupt:
            status.update("interrupted: removing what was started")
            daemon.end(place)
            raise
    state = place.ask()
    held = held_by(state.enforcement, spec.unlimited, spec.limited_boards)
    log.print(f"running: {counted(len(state.devices), 'device')} (process {pid}); {held}")
    if state.dilation > 1:
        log.print(f"every quota and rate is divided by D = {number(state.dilation)}")
    if note := threads_note(state.dilation, spec.one_thread):
        log.print(note)
    log.print(f"fleet id {state.fleet_id}, broker {state.broker}")


def _until_ready(place: daemon.FleetFolder, status: Status) -> None:
    while not place.ready():
        if not place.alive():
            message, _, hint = place.failure().partition("\n")
            raise FleetError(f"the fleet did not start: {message}", hint=hint or f"see {place.log}")
        status.update(place.progress() or "starting")
        time.sleep(0.1)


@commands.command()
def ps(fleet: Fleet, as_json: Json = False) -> None:
    """Show the limits of every device as requested and as read back, and what it has used."""
    state = _place(load_fleet(fleet)).ask()
    if as_json:
        print_json(msgspec.to_builtins(state))
    else:
        console.print(fleet_table(state))
        if any(device.facts for device in state.devices):
            print_whole(board_table(state))


@commands.command()
def down(fleet: Fleet) -> None:
    """Stop the fleet and remove everything it made."""
    spec = load_fleet(fleet)
    with log.status("ending"):
        daemon.end(_place(spec))
    log.print(f"the fleet {spec.name} is stopped")


@commands.command()
def ls(as_json: Json = False) -> None:
    """List every fleet that stands on this host, with or without a run, and the CPUs that are left."""
    fleets = host_cpus.standing()
    cores = usable_cores()
    left = max(0.0, cores - host_cpus.taken_cpus(fleets))
    if as_json:
        print_json({"fleets": msgspec.to_builtins(fleets), "cores": cores, "left": left})
        return
    heads = columns("fleet", "id", "backend", "process", ">CPUs in quotas", ">reserved", "unlimited: real boards")
    caption = f"{number(left)} of {number(cores)} cores are left for another one"
    table = Table(*heads, title="fleets on this host", caption=caption)
    for fleet in fleets:
        process = str(fleet.pid) if fleet.pid else "–"
        shares = (number(fleet.cpus), number(fleet.reserve_cpus))
        boards = ", ".join(fleet.boards) or "–"
        table.add_row(fleet.name or "–", fleet.fleet_id, fleet.backend, process, *shares, boards)
    console.print(table)


@commands.command()
def push_image(
    fleet: Fleet,
    to: Annotated[
        list[str] | None,
        typer.Option(metavar="<url>", help="A node's engine: ssh://user@host or unix:///path. Repeatable."),
    ] = None,
) -> None:
    """Bring the agent's image to the nodes of a Swarm.

    It goes into the registry that FLEET names, and into the engines given with --to. It is built if this host's engine
    has none."""
    from orchestrator.fleet.swarm import push

    spec = load_fleet(fleet)
    registry = spec.swarm.registry if spec.swarm else ""
    if not registry and not to:
        raise UsageError("the fleet file names no registry", hint="give each node's engine: --to ssh://user@host")
    tag = push.push_image(registry, to or (), log.print)
    log.print(f"{tag} is there")


def _place(spec: FleetSpec) -> daemon.FleetFolder:
    place = daemon.FleetFolder.of(spec)
    if not place.alive():
        raise FleetError(f"the fleet {spec.name} is not running", hint=f"edgebed fleet up {spec.path}")
    return place


SELF_HELD = (
    "–: not limited by the kernel. The agents limit CPU and rates themselves; `edgebed calibrate` measures this."
)


def fleet_table(state: FleetState) -> Table:
    """What `edgebed fleet ps` prints of a fleet: a row per device."""
    dilated = f"; limits divided by D = {number(state.dilation)}" if state.dilation > 1 else ""
    grain = f", grain {state.grain}" if state.grain else ""
    table = Table(
        *columns("device", "", ">CPUs", ">period, ms", ">up Mbit/s", ">down Mbit/s", ">memory MiB"),
        title=f"{state.fleet} ({state.backend}, {held_by(state.enforcement)}{grain}{dilated})",
        caption=SELF_HELD if state.enforcement == Enforcement.SOFTWARE else None,
    )
    for device in state.devices:
        for label, *cells in _rows(device):
            table.add_row(device.name if label in ("requested", UNLIMITED) else "", label, *cells)
        table.add_section()
    return table


def board_table(state: FleetState) -> Table:
    """What `edgebed fleet ps` prints of the real boards in a fleet: what their sensors read last."""
    table = Table(*columns(*BOARD_COLUMNS, no_wrap=True), title="boards")
    for device in state.devices:
        if device.facts:
            table.add_row(*map(escape, board_row(device.name, device.facts, device.reading, None)))
    return table


def _rows(device: DeviceInFleet) -> list[list[str]]:
    wanted, held = device.requested, device.held
    if held is None:
        return [["requested", *_limits(wanted)], ["away", device.error, "", "", "", ""]]
    if wanted.unlimited:
        here = "connected" if held.alive else "away"
        return [[UNLIMITED, *[NONE] * 5], [f"profile {device.profile}, {here}", *[""] * 5]]
    return [
        ["requested", *_limits(wanted)],
        ["set", *_set(held)],
        ["used" if held.alive else "used (dead)", *_used(held)],
    ]


def _set(held: Held) -> list[str]:
    if not held.read_back:
        return [NONE, NONE, NONE, NONE, "not limited"]
    return _limits(held)


def _used(held: Held) -> list[str]:
    memory = fixed(held.memory_used_mib, 0)
    if not held.read_back:
        return [seconds(held.cpu_s), "", NONE, NONE, memory]
    return [
        f"{seconds(held.cpu_s)} ({seconds(held.throttled_s)} throttled)",
        "",
        size(held.uplink_bytes),
        size(held.downlink_bytes),
        memory,
    ]


def _limits(of: Limits | Held) -> list[str]:
    rates = of.uplink_bit_s, of.downlink_bit_s
    return [
        "none" if of.cpus is None else number(of.cpus, 4),
        "none" if of.period_us is None else number(of.period_us / 1e3, 4),
        *("none" if rate is None else number(rate / 1e6, 4) for rate in rates),
        "none" if of.memory_mib is None else str(of.memory_mib),
    ]
