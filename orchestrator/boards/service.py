"""`edgebed boards serve`: enrolment and shards over HTTPS, and the TLS broker, until it is told to end."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import errno
import os
import secrets
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil

from edgebed.errors import FleetError, LinkError
from edgebed.wire.boards import HTTPS_PORT, MQTT_PORT
from orchestrator.boards import https
from orchestrator.boards.app import BoardsApp
from orchestrator.boards.authority import Authority
from orchestrator.boards.enrolment import Enrolment
from orchestrator.boards.place import Live, Local, Place, Where
from orchestrator.boards.registry import Registry, Store
from orchestrator.boards.release import Releasing
from orchestrator.boards.tls_broker import LOOPBACK, Files, TlsBroker
from orchestrator.broker.open_broker import free_port
from orchestrator.fleet.ownership import OwnedFolder

LOOK_S = 0.2
"""How often the registry's file is looked at: a revocation is in force so much later at most."""

Notify = Callable[[str], None]


class ServeRequest(msgspec.Struct, frozen=True):
    """Args:
    hosts: names and addresses under which boards reach this host, besides its own addresses; the first one is printed
        by `edgebed boards invite`.
    listen: the address to listen on.
    """

    hosts: tuple[str, ...] = ()
    listen: str = "0.0.0.0"
    port: int = HTTPS_PORT
    mqtt_port: int = MQTT_PORT


async def serve(request: ServeRequest, place: Place, notify: Notify, ready: Callable[[], None] = lambda: None) -> None:
    """Run until cancelled.

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
    """Args:
    brokers: the folder for the broker's files, which become its user's.
    ours: the folder for the files of HTTPS.
    """

    def __init__(self, request: ServeRequest, place: Place, brokers: Path, ours: Path, notify: Notify) -> None:
        https.allow_connections()
        self._request, self._place, self._notify = request, place, notify
        self._store, self._authority = Store(place), Authority(place.folder)
        self._where = Where(_hosts(request), request.port, request.mqtt_port, request.listen)
        self._key, self._certificate = self._authority.server_pair(
            _all_names(self._where.hosts), dt.datetime.now(dt.UTC)
        )
        self._ours = ours
        local = place.local() or Local(0, secrets.token_urlsafe(18))
        if not is_free(local.port):
            local = msgspec.structs.replace(local, port=free_port([LOOPBACK]))
        place.tell_local(local)
        self._broker = TlsBroker(brokers, request.listen, request.mqtt_port, local.port, local.password)
        self._broker.on_session = self._tell
        self._releasing = Releasing(place, self._broker.local, f"serve-{secrets.token_hex(16)}")
        self._applied = 0

    async def run(self, ready: Callable[[], None]) -> None:
        app = BoardsApp(
            Enrolment(self._store, self._authority, self._where.mqtt_port), self._place.shards, self._notify
        )
        sock = _open(self._request.listen, self._request.port)
        with sock, contextlib.ExitStack() as stack:
            registry = self._store.look()
            await self._broker.start(self._files(registry), _revoked(registry))
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
        context = https.server_context(self._authority.pem.decode(), *self._https_files())
        server = https.make_server(app.asgi, context)
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        watching = asyncio.create_task(self._watch())
        self._notify(f"boards reach this service at {self._where.address}, the broker at port {self._where.mqtt_port}")
        ready()
        try:
            await asyncio.wait([serving, watching], return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()
        finally:
            watching.cancel()
            server.should_exit = True
            await asyncio.gather(serving, watching, return_exceptions=True)

    # ---- revocation ----

    async def _watch(self) -> None:
        """Put changes of the registry in force, and release boards. Raises FleetError when the broker ends."""
        ended = asyncio.create_task(self._broker.ended())
        try:
            while not ended.done():
                registry = self._store.look()
                if registry.version != self._applied:
                    restarted = await self._apply(registry)
                    if restarted:
                        ended.cancel()
                        ended = asyncio.create_task(self._broker.ended())
                self._releasing.look()
                await asyncio.wait([ended], timeout=LOOK_S)
            raise FleetError(f"the broker has ended: {ended.result()}", hint="start `edgebed boards serve` again")
        finally:
            ended.cancel()

    async def _apply(self, registry: Registry) -> bool:
        """Returns whether the broker was restarted."""
        before, revoked = self._broker.pid(), _revoked(registry)
        await self._broker.revoke(self._files(registry), revoked)
        self._releasing.tell_revoked(revoked)
        self._applied = registry.version
        self._tell()
        return self._broker.pid() != before

    def _files(self, registry: Registry) -> Files:
        now = dt.datetime.now(dt.UTC)
        revoked = self._authority.revoked_list(registry.revoked_serials(), registry.version + 1, now)
        return Files(self._authority.pem, self._certificate, self._key, revoked)

    def _https_files(self) -> tuple[Path, Path]:
        paths = self._ours / "https.pem", self._ours / "https.key"
        for path, data in zip(paths, (self._certificate, self._key), strict=True):
            path.touch(0o600)
            path.write_bytes(data)
        return paths

    def _tell(self) -> None:
        local = self._broker.local
        self._place.tell_live(
            Live(os.getpid(), local.port, local.username, local.password, self._applied, self._broker.sessions)
        )


def _revoked(registry: Registry) -> list[str]:
    return [board.id for board in registry.boards if board.revoked_s is not None]


def is_free(port: int) -> bool:
    """Whether a program of ours may listen there, on loopback."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of the last broker may linger
        try:
            sock.bind((LOOPBACK, port))
        except OSError:
            return False
    return port > 0


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


def _hosts(request: ServeRequest) -> tuple[str, ...]:
    """As boards should call this host: what was asked for, else the address of its default route."""
    return request.hosts or (_main_address(),)


def _main_address() -> str:
    """Of the route to other networks; loopback without one. A connection of UDP sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))  # an address for documentation (RFC 5737)
            return str(sock.getsockname()[0])
        except OSError:
            return LOOPBACK


def _all_names(hosts: tuple[str, ...]) -> list[str]:
    """For the server's certificate: `hosts`, this host's name, and all its addresses."""
    rows = [row for rows in psutil.net_if_addrs().values() for row in rows]
    found = [row.address.split("%")[0] for row in rows if row.family in (socket.AF_INET, socket.AF_INET6)]
    return list(dict.fromkeys([*hosts, socket.gethostname(), "localhost", *found]))
