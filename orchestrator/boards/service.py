"""`edgebed boards serve`: enrolment and shards over HTTPS, and the TLS broker, until it is told to end."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import errno
import ipaddress
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import psutil

from edgebed.errors import FileError, FleetError, LinkError
from edgebed.link.sockets import allow_connections
from orchestrator.boards import https
from orchestrator.boards.app import BoardsApp
from orchestrator.boards.authority import Authority
from orchestrator.boards.enrolment import Enrolment
from orchestrator.boards.members import Taken, taken_boards
from orchestrator.boards.registry import Registry, Store
from orchestrator.boards.release import Releasing
from orchestrator.boards.service_folder import Live, ServiceFolder, Where, write_secret
from orchestrator.boards.tls_broker import Files, TlsBroker
from orchestrator.broker.mosquitto import binary, flaws
from orchestrator.fleet.network.netns import HOST_END
from orchestrator.fleet.ownership import OwnedFolder, this_process

LOOPBACK = "127.0.0.1"


def main_address() -> str:
    """Of the route to other networks; loopback without one. A connection of UDP sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))  # an address for documentation (RFC 5737)
            return str(sock.getsockname()[0])
        except OSError:
            return LOOPBACK


def all_names(hosts: Sequence[str]) -> list[str]:
    """For the server's certificate: `hosts`, this host's name, and all its addresses but those of fleets' links."""
    rows = [row for name, rows in psutil.net_if_addrs().items() if not HOST_END.match(name) for row in rows]
    found = [row.address.split("%")[0] for row in rows if row.family in (socket.AF_INET, socket.AF_INET6)]
    return list(dict.fromkeys([*hosts, socket.gethostname(), "localhost", *found]))


def lacking(certified: Sequence[str], names: Sequence[str]) -> list[str]:
    """Names that the certificate lacks. Link-local addresses do not count: every new interface has one, also those
    that fleets make."""
    return [name for name in names if name not in certified and not _link_local(name)]


def _link_local(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_link_local
    except ValueError:
        return False


LOOK_S = 0.2
"""How often the registry's file is looked at: a revocation is in force so much later at most."""

IN_FORCE_S = 10.0
"""A join is answered after so long at most, also if the broker does not know the board yet."""

CERTIFY_S = 86400.0
"""How often the server gets a new certificate."""

ADDRESSES_S = 10.0
"""How often this host's addresses are looked at."""


async def serve(
    request: Where, place: ServiceFolder, notify: Callable[[str], None], ready: Callable[[], None] = lambda: None
) -> None:
    """Run until cancelled. `request`: without hosts, they are found.

    Raises:
        FleetError: the service already runs here, or the broker has ended.
        LinkError: the broker cannot be started; a port cannot be opened.
        FileError: the folder cannot be used.
    """
    lock = place.hold()
    try:
        with OwnedFolder("edgebed-broker-") as brokers, OwnedFolder("edgebed-serve-") as ours:
            await _Service(request, place, brokers, ours, notify).run(ready)
    finally:
        os.close(lock)


class _Service:
    """The parts of the running service: HTTPS, the broker, the registry.

    Args:
        brokers: the folder for the broker's files.
        ours: the folder for the files of HTTPS.
    """

    def __init__(
        self, request: Where, place: ServiceFolder, brokers: Path, ours: Path, notify: Callable[[str], None]
    ) -> None:
        allow_connections()
        self._request, self._place, self._notify = request, place, notify
        self._store, self._authority = Store(place), Authority(place.folder)
        self._where = msgspec.structs.replace(request, hosts=_hosts(request), asked=bool(request.hosts))
        self._ours = ours
        self._names = all_names(self._where.hosts)
        self._certify(self._names)
        self._context = https.server_context(self._authority.pem.decode(), *self._https_files())
        self._broker = TlsBroker(brokers, request.listen, request.mqtt_port)
        self._broker.on_session = self._session_changed
        self._releasing = Releasing(self._broker.local, f"serve-{secrets.token_hex(16)}")
        self._members = https.Members()
        self._applied = 0
        self._fleets: dict[str, str] = {}
        self._revoked: tuple[list[int], bytes] = ([], b"")
        self._untold, self._complaint = False, ""
        self._looked = time.monotonic()

    async def run(self, ready: Callable[[], None]) -> None:
        enrolment = Enrolment(self._store, self._authority, self._where.mqtt_port)
        app = BoardsApp(enrolment, self._place.shards, self._notify, self._in_force)
        sock = _open(self._request.listen, self._request.port)
        with sock, contextlib.ExitStack() as stack:
            registry = self._store.look()
            self._fleets = self._fleets_of(registry, taken_boards(self._place))
            await self._broker.start(self._files(registry), _rights(registry, self._fleets))
            try:
                self._applied = registry.version
                self._place.tell_where(self._where)
                self._tell()
                stack.callback((self._place.folder / "live.json").unlink, missing_ok=True)
                await self._releasing.open()
                await self._until_end(app, sock, ready)
            finally:
                await self._releasing.close()
                self._broker.on_session = lambda: None
                await self._broker.stop()

    async def _until_end(self, app: BoardsApp, sock: socket.socket, ready: Callable[[], None]) -> None:
        server = https.make_server(app.asgi, self._context, self._members)
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        watching = asyncio.create_task(self._watch())
        self._notify(f"boards reach this service at {self._where.address}, the broker at port {self._where.mqtt_port}")
        if why := flaws(binary() or ""):
            self._notify(why)
        ready()
        try:
            await asyncio.wait([serving, watching], return_when=asyncio.FIRST_COMPLETED)
            for task in (watching, serving):
                if task.done():
                    task.result()
        finally:
            watching.cancel()
            server.should_exit = True
            await asyncio.gather(serving, watching, return_exceptions=True)

    # ---- revocation ----

    async def _watch(self) -> None:
        """Put changes of the registry and new addresses in force, and release boards. What cannot be written is tried
        again. Raises FleetError when the broker ends, LinkError when it cannot be restarted."""
        ended = asyncio.create_task(self._broker.ended())
        try:
            while not ended.done():
                before = self._broker.pid()
                try:
                    await self._look()
                    self._complaint = self._complaint if self._untold else ""
                except FileError as error:
                    if self._broker.pid() is None:
                        raise
                    self._complain(error)
                if self._broker.pid() != before:
                    ended.cancel()
                    ended = asyncio.create_task(self._broker.ended())
                await asyncio.wait([ended], timeout=LOOK_S)
            raise FleetError(f"the broker has ended: {ended.result()}", hint="start `edgebed boards serve` again")
        finally:
            ended.cancel()

    async def _look(self) -> None:
        """Raises FileError, LinkError."""
        registry, taken = self._store.look(), taken_boards(self._place)
        self._releasing.look(taken.keys())
        fleets = self._fleets_of(registry, taken)
        if self._follow_addresses() or registry.version != self._applied or fleets != self._fleets:
            await self._apply(registry, fleets)
        elif self._untold:
            self._tell()

    async def _apply(self, registry: Registry, fleets: dict[str, str]) -> None:
        before = self._fleets
        self._applied = -1  # not in force before the broker has read its files
        if not await self._broker.enforce(self._files(registry), _rights(registry, fleets)):
            return
        for board, fleet in before.items() - fleets.items():
            self._releasing.forget(board, fleet)
        self._members.close(registry.revoked_serials())
        self._releasing.tell_revoked(board.id for board in registry.boards if board.revoked_s is not None)
        self._applied, self._fleets = registry.version, fleets
        self._tell()

    def _fleets_of(self, registry: Registry, taken: Mapping[str, Taken]) -> dict[str, str]:
        """The fleets that boards work for, by the boards' ids. One whose orchestrator has ended keeps the topics of its
        fleet until it says that it waits."""
        last = {board: fleet for board, fleet in self._fleets.items() if board in self._releasing.working}
        fleets = last | {board: each.fleet_id for board, each in taken.items()}
        active = {board.id for board in registry.active()}
        return {board: fleet for board, fleet in fleets.items() if board in active}

    async def _in_force(self) -> None:
        """Returns when the broker has the registry as it is now."""
        wanted, deadline = self._store.look().version, time.monotonic() + IN_FORCE_S
        while self._applied < wanted and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    def _complain(self, error: FileError) -> None:
        if str(error) != self._complaint:
            self._complaint = str(error)
            self._notify(f"{error}; {error.hint}. It is tried again; until then no change of boards is in force.")

    # ---- addresses ----

    def _follow_addresses(self) -> bool:
        """Look now and then whether this host has a new address. Returns whether there is a new certificate, which the
        broker has to read."""
        if time.monotonic() - self._looked < ADDRESSES_S:
            return False
        self._looked = time.monotonic()
        hosts = _hosts(self._request)
        if hosts not in (self._where.hosts, (LOOPBACK,)):
            where = msgspec.structs.replace(self._where, hosts=hosts)
            self._place.tell_where(where)
            self._where = where
            self._notify(f"boards reach this service at {self._where.address} now")
        names = all_names(self._where.hosts)
        new = lacking(self._names, names)
        if not new and abs(time.time() - self._certified_s) < CERTIFY_S:  # by the host's clock, which goes on in sleep
            return False
        self._certify(names)
        self._context.load_cert_chain(*self._https_files())
        self._names = names
        if new:
            self._notify(f"the certificate of this service is valid for {', '.join(new)} too")
        return True

    def _certify(self, names: Sequence[str]) -> None:
        self._certified_s = time.time()
        now = dt.datetime.fromtimestamp(self._certified_s, dt.UTC)
        self._key, self._certificate = self._authority.server_pair(names, now)

    # ---- files ----

    def _files(self, registry: Registry) -> Files:
        serials = registry.revoked_serials()
        if not self._revoked[1] or serials != self._revoked[0]:
            now = dt.datetime.now(dt.UTC)
            self._revoked = serials, self._authority.revoked_list(serials, registry.version + 1, now)
        return Files(self._authority.pem, self._certificate, self._key, self._revoked[1])

    def _https_files(self) -> tuple[Path, Path]:
        paths = self._ours / "https.pem", self._ours / "https.key"
        for path, data in zip(paths, (self._certificate, self._key), strict=True):
            write_secret(path, data)
        return paths

    def _session_changed(self) -> None:
        """Many may change at once: they are told together."""
        self._untold = True

    def _tell(self) -> None:
        """What cannot be written is told later."""
        self._untold = False
        try:
            sessions = self._broker.sessions
            self._place.tell_live(Live(this_process(), self._broker.local, self._applied, sessions, self._fleets))
        except FileError as error:
            self._untold = True
            self._complain(error)


def _rights(registry: Registry, fleets: Mapping[str, str]) -> dict[str, str]:
    """The boards that may connect, and the fleet of each."""
    return {board.id: fleets.get(board.id, "") for board in registry.active()}


def _open(listen: str, port: int) -> socket.socket:
    """Raises LinkError: systemd then tries again, for at boot the address may come late."""
    try:
        return https.listen(listen, port)
    except OSError as error:
        why = str(error.strerror or error).partition(" (while attempting")[0]
        hint = "--listen takes an address of this host"
        if error.errno == errno.EADDRINUSE:
            hint = "see which program has the port (ss -ltnp), or take another one with --port"
        raise LinkError(f"cannot listen on {listen}:{port}: {why}", hint=hint) from None


def _hosts(request: Where) -> tuple[str, ...]:
    """As boards should call this host: what was asked for, else the address of its default route."""
    return request.hosts or (main_address(),)
