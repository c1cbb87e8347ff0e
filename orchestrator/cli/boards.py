"""`edgebed boards serve|invite|ls|show|rename|revoke|measure|selftest`: real devices that join this host."""

from __future__ import annotations

import datetime as dt
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import msgspec
import typer
from rich.markup import escape
from rich.table import Table

from edgebed.errors import FleetError, UsageError
from edgebed.module_process import module_command
from edgebed.service_unit import ServiceUnit
from edgebed.wire.boards import HTTPS_PORT, MQTT_PORT, Token
from orchestrator.boards.members import taken_boards
from orchestrator.boards.registry import Board, Registry, Store
from orchestrator.boards.service_folder import ServiceFolder, Where
from orchestrator.cli.arguments import BoardName, Json
from orchestrator.cli.boards_measure import measure_board
from orchestrator.cli.boards_selftest import selftest_board
from orchestrator.cli.console import columns, print_json, print_whole, say
from orchestrator.fleet.spec.profile import lasting_name
from orchestrator.records.words.formatting import NONE
from orchestrator.runs.signals import run_to_end

IN_FORCE_S = 5.0
"""Seconds within which a running service has closed the sessions of a revoked board; it needs less than 2."""

LONGEST_S = 30 * 86400.0
"""Of an invitation: whoever finds its token may join until then."""

NEEDS = (
    "CapabilityBoundingSet=CAP_CHOWN CAP_DAC_OVERRIDE CAP_FOWNER CAP_KILL CAP_SETGID CAP_SETUID CAP_SYS_RESOURCE",
    "MemoryMax=50%",
    "ProtectKernelTunables=true",
)
"""To start Mosquitto as another user. Runs find its Unix socket in the unit's folder below /run."""

commands = typer.Typer(help="Enrol boards: devices of your own that join over the network.", no_args_is_help=True)


@commands.command("serve")
def serve_(
    host: Annotated[
        list[str] | None,
        typer.Option(help="Name or address under which boards reach this host. Repeatable; `invite` prints the first."),
    ] = None,
    listen: Annotated[str, typer.Option(help="Address to listen on.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(min=1, max=65535, help="HTTPS: enrolment and shards.")] = HTTPS_PORT,
    mqtt_port: Annotated[int, typer.Option(min=1, max=65535, help="MQTT over TLS.")] = MQTT_PORT,
    service: Annotated[bool, typer.Option("--service", help="Write a systemd unit that serves from boot on.")] = False,
) -> None:
    """Serve boards until Ctrl-C: enrolment and shards over HTTPS, and an MQTT broker that asks for certificates."""
    from orchestrator.boards.service import serve  # not earlier: it loads `cryptography`

    request = Where(_host_names(host or ()), port, mqtt_port, listen)
    if port == mqtt_port:
        raise UsageError(f"--port and --mqtt-port are both {port}", hint="give them different numbers")
    if service:
        options = {"--listen": listen, "--port": str(port), "--mqtt-port": str(mqtt_port)}
        given = [text for pair in [*options.items(), *[("--host", each) for each in host or ()]] for text in pair]
        say(unit(given).install())
        return
    run_to_end(serve(request, ServiceFolder.of_user(), say), lambda line: None)


@commands.command()
def invite(
    name: Annotated[str, typer.Argument(help="Name for the board.")],
    profile: Annotated[
        str, typer.Option(help="Device profile of the board in fleets that name none: its name or file.")
    ] = "",
    expires: Annotated[str, typer.Option(help="How long the token works: 90s, 30m, 1h or 2d.")] = "1h",
    replace: Annotated[
        bool, typer.Option("--replace", help="For a board that was set up again: the old one is revoked as it joins.")
    ] = False,
) -> None:
    """Print the command that makes a board join, and the token that it asks for. It works once."""
    from orchestrator.boards.authority import Authority  # not earlier: it loads `cryptography`

    place = ServiceFolder.of_user()
    where = place.where()
    if where is None:
        raise UsageError(
            "the boards service never ran, so its address is not known",
            hint="start it in another terminal: edgebed boards serve",
        )
    kept = lasting_name(profile, Path.cwd(), "--profile") if profile else ""
    authority = Authority(place.folder)
    with Store(place).change() as registry:
        secret = registry.invite(name, kept, duration_s(expires), replace, time.time())
    token = Token(authority.fingerprint(), secret, name)
    if not place.running():
        say("The service does not run: start `edgebed boards serve` before the board joins.")
    say(f"On the board, within {expires}, once; it asks for the token, which the second line has:")
    print(f"edgebed-agent join {where.address} -\n{token}")


@commands.command()
def ls(as_json: Json = False) -> None:
    """List the boards that have joined, and the invitations that are open."""
    place = ServiceFolder.of_user()
    registry = Store(place).read()
    working = {board: str(taken) for board, taken in taken_boards(place).items()}
    rows = board_rows(registry, _connected(place), time.time(), working)
    if as_json:
        print_json(rows)
        return
    if not rows:
        say("No board has joined, and no invitation is open. `edgebed boards invite NAME` prints the command for one.")
        return
    heads = columns("name", "id", "state", "certificate", "profile", "model", no_wrap=True)
    table = Table(*heads, title="boards")
    for row in rows:
        table.add_row(*[escape(row[key]) or NONE for key in ("name", "id", "state", "until", "profile", "model")])
    print_whole(table)


@commands.command()
def show(name: BoardName, as_json: Json = False) -> None:
    """Show all that is known of a board."""
    place = ServiceFolder.of_user()
    board = Store(place).read().find(name)
    live = place.live()
    sessions = [each for each in (live.sessions if live else ()) if each.board == board.id]
    if as_json:
        print_json(msgspec.to_builtins(board) | {"sessions": msgspec.to_builtins(sessions)})
        return
    table = Table(title=f"board {escape(board.name)}", show_header=False)
    for key, value in {
        "id": board.id,
        "profile": board.profile,
        "joined": _day(board.joined_s),
        "certificate until": _day(board.not_after_s),
        "key (SHA-256)": board.key,
        "connected from": ", ".join(sorted({each.address for each in sessions})),
        **board.facts,
    }.items():
        table.add_row(escape(key), escape(value) or NONE)
    print_whole(table)


@commands.command()
def rename(name: BoardName, new: Annotated[str, typer.Argument(help="The new name.")]) -> None:
    """Give a board another name. Its identity is its key, so it need not join again."""
    with Store(ServiceFolder.of_user()).change() as registry:
        registry.rename(registry.find(name), new, time.time())
    say(f"{name} is called {new} now")


@commands.command()
def revoke(name: BoardName) -> None:
    """Make a board's certificates and open invitations useless, and close its connections at once."""
    place = ServiceFolder.of_user()
    store = Store(place)
    with store.change() as registry:
        board = registry.expel(name, time.time())
    if board is None:
        say(f"the invitation of {name} no longer works")
        return
    say(f"{board.name} ({board.id}) is revoked; {_until_in_force(place, store)}")


commands.command("measure")(measure_board)
commands.command("selftest")(selftest_board)


def _host_names(names: Sequence[str]) -> tuple[str, ...]:
    """Raises UsageError for what is neither a host name nor an address: boards could not reach it."""
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9_.:-]{1,253}", name):
            raise UsageError(f"--host {name!r} is no host name", hint="give a name or an address, without a port")
    return tuple(names)


def duration_s(text: str) -> float:
    """Seconds of `90s`, `30m`, `1h`, `2d`. Raises UsageError."""
    found = re.fullmatch(r"(\d{1,6})([smhd])", text)
    seconds = int(found[1]) * {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}[found[2]] if found else 0.0
    if not 0 < seconds <= LONGEST_S:
        raise UsageError(
            f"--expires {text!r} is no time from 1 s to {LONGEST_S / 86400:g} days", hint="write 90s, 30m, 1h or 2d"
        )
    return seconds


def board_rows(
    registry: Registry, connected: set[str], now: float, working: Mapping[str, str] = MappingProxyType({})
) -> list[dict[str, str]]:
    """What `edgebed boards ls` shows: boards, then open invitations. `working`: the fleet that has a board, by id."""
    rows = [_row(board, board.id in connected, now, working.get(board.id, "")) for board in registry.boards]
    for each in registry.invitations:
        if not (each.used_by or each.withdrawn) and each.expires_s > now:
            state = f"invited, {(each.expires_s - now) / 60:.0f} min left"
            rows.append(
                {"name": each.name, "id": "", "state": state, "until": "", "profile": each.profile, "model": ""}
            )
    return rows


def _row(board: Board, connected: bool, now: float, fleet: str) -> dict[str, str]:
    state = "connected" if connected else "away"
    if fleet:
        state = f"{state}, works for {fleet}"
    if board.revoked_s is not None:
        state = f"revoked ({board.revoked_why})"
    elif board.not_after_s < now:
        state = "certificate ran out"
    model = board.facts.get("model") or board.facts.get("machine", "")
    until = "" if board.revoked_s is not None else _day(board.not_after_s)
    return {
        "name": board.name,
        "id": board.id,
        "state": state,
        "until": until,
        "profile": board.profile,
        "model": model,
    }


def _connected(place: ServiceFolder) -> set[str]:
    live = place.live()
    return {each.board for each in live.sessions} if live else set()


def _until_in_force(place: ServiceFolder, store: Store) -> str:
    """Waits until the running service has closed the sessions; says so. Raises FleetError."""
    version, begin = store.read().version, time.monotonic()
    while (live := place.live()) is None or live.applied < version:
        if not place.running():
            return "the service does not run, so there was no connection to close"
        if time.monotonic() - begin > IN_FORCE_S:
            raise FleetError(
                f"the running service did not close its connections within {IN_FORCE_S:.0f} s",
                hint="end `edgebed boards serve` and start it again: that closes all connections",
            )
        time.sleep(0.02)
    return f"its connections are closed ({time.monotonic() - begin:.2f} s)"


def unit(options: list[str]) -> ServiceUnit:
    """The systemd unit of `edgebed boards serve` with these options."""
    program = Path(sys.executable).parent / "edgebed"
    start = [str(program)] if program.exists() else module_command("orchestrator")
    state = os.environ.get("XDG_STATE_HOME")
    kept = {"XDG_STATE_HOME": state} if state else {"HOME": str(Path.home())}
    command, folder = (*start, "boards", "serve", *options), ServiceFolder.of_user().folder
    return ServiceUnit("edgebed-boards", "Edgebed boards service", command, kept, folder, NEEDS)


def _day(seconds: float) -> str:
    return f"{dt.datetime.fromtimestamp(seconds, dt.UTC):%Y-%m-%d %H:%M} UTC"
