"""Mosquitto for boards: TLS with client certificates for them, a Unix socket and a password for the orchestrator.

Works with Mosquitto 2.0.11 (Debian 12) and 2.1. The certificate's common name is the user name, and an ACL by pattern
lets a board write and read the topics of its own id only.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from edgebed.errors import LinkError
from edgebed.link.connection import Address
from edgebed.link.mqtt import MqttLink
from edgebed.timeouts import end
from edgebed.wire.topics import ORCHESTRATOR
from orchestrator.boards.service_folder import BoardConnection
from orchestrator.broker.acl import mosquitto_lines
from orchestrator.broker.child import END_S, NOT_TOLD, begin
from orchestrator.broker.mosquitto import (
    binary,
    broker_user,
    common_settings,
    make_socket_folder,
    password_hash,
    socket_path,
    tls_settings,
    write_file,
)

START_S, RELOAD_S, KICK_S = 20.0, 2.0, 2.0
MOST_CONNECTIONS = 4096
"""Of boards, two each, and of strangers who have not yet shown a certificate."""

CONNECTED = re.compile(r"New client connected from (\S*) as (.*) \(p\d+, c\d+, k\d+, u'([^']*)'\)\.")
DISCONNECTED = re.compile(r"Client (\S+) (?:\[\S+\] )?(?:closed its connection|disconnected|has exceeded timeout)")


class Files(msgspec.Struct, frozen=True):
    """What the broker reads, all PEM."""

    ca: bytes
    certificate: bytes
    key: bytes
    revoked: bytes


def settings(folder: Path, listen: str, port: int) -> list[str]:
    """The lines of mosquitto.conf. Its log tells who connects."""
    return [
        *common_settings(str(folder)),
        "connection_messages true",
        "log_timestamp false",
        "log_type notice",
        "log_type information",
        f"listener 0 {socket_path(folder)}",
        *tls_settings(port, listen, MOST_CONNECTIONS, str(folder)),
        f"crlfile {folder}/revoked.pem",
        "use_identity_as_username true",
        "",
    ]


class TlsBroker:
    """The Mosquitto process that boards connect to.

    Args:
        folder: a new folder, for the broker's files; they become the user's as whom it runs.
        listen: the address for boards.

    Attributes:
        local: for the orchestrator.
    """

    def __init__(self, folder: Path, listen: str, port: int) -> None:
        self._folder, self._user = folder, broker_user()
        self.local = Address(str(socket_path(folder)), 0, ORCHESTRATOR, secrets.token_urlsafe(18))
        self._settings = settings(folder, listen, port)
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._tail: list[str] = []
        self._reloaded = asyncio.Event()
        self._sessions: dict[str, BoardConnection] = {}
        self._untold = False  # a session whose user or client id the log cuts off
        self.on_session: Callable[[], None] = lambda: None

    @property
    def sessions(self) -> tuple[BoardConnection, ...]:
        return tuple(self._sessions.values())

    async def start(self, files: Files, revoked: Iterable[str]) -> None:
        """Returns when it can be used. Raises LinkError."""
        program = binary()
        if program is None:
            raise LinkError("Mosquitto is not installed: only it serves boards", hint="apt install mosquitto")
        self._write_all(files, revoked)
        nothing, pipe = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE
        command = [program, "-c", str(self._folder / "mosquitto.conf")]
        self._process = await begin(command, self._user, stdin=nothing, stdout=nothing, stderr=pipe)
        self._reader = asyncio.create_task(self._read_log(self._process))
        await self._wait_ready(self._process)

    async def stop(self) -> None:
        process, self._process = self._process, None
        await end(process, END_S)
        if self._reader is not None:
            await self._reader
        self._sessions, self._untold = {}, False

    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def ended(self) -> str:
        """Waits for the broker's end; returns what it said last."""
        assert self._process is not None
        assert self._reader is not None
        await self._process.wait()
        await self._reader
        return f"exit code {self._process.returncode}: {' / '.join(self._tail)}"

    async def revoke(self, files: Files, revoked: Iterable[str]) -> None:
        """Put files and a new list of revoked boards in force, and close their sessions. They lose their rights when
        the broker has read its files; a session ends when the orchestrator takes over its client id. A broker that does
        not do so in time, or has a session whose id is not known, is restarted.

        Raises:
            FileError: a file cannot be written; nothing has changed.
            LinkError: the broker cannot be restarted.
        """
        revoked = set(revoked)
        self._write_all(files, revoked)
        if not self._untold:
            with contextlib.suppress(TimeoutError, LinkError, ProcessLookupError):
                await self._reload()
                await self.close_sessions(revoked)
                return
        await self.stop()
        await self.start(files, revoked)

    async def _reload(self) -> None:
        """Have the broker read its files; open connections stay. Raises TimeoutError."""
        assert self._process is not None
        self._reloaded.clear()
        self._process.send_signal(signal.SIGHUP)
        async with asyncio.timeout(RELOAD_S):
            await self._reloaded.wait()

    async def close_sessions(self, boards: Iterable[str]) -> None:
        wanted = set(boards)
        await asyncio.gather(*[self._take_over(each) for each in self.sessions if each.board in wanted])

    async def _take_over(self, session: BoardConnection) -> None:
        """Connect with its client id, whereupon the broker closes the other connection."""
        link = MqttLink(self.local, session.client)
        async with asyncio.timeout(KICK_S):
            await link.open()
        await link.close()
        if self._sessions.get(session.client) is session:
            del self._sessions[session.client]
        self.on_session()

    # ---- files ----

    def _write_all(self, files: Files, revoked: Iterable[str]) -> None:
        """Raises FileError."""
        local = self.local
        hashed = password_hash(local.password, secrets.token_bytes(12))
        for name, data in {
            "mosquitto.conf": "\n".join(self._settings).encode(),
            "passwords": f"{local.username}:{hashed}\n".encode(),
            "acl": "\n".join(mosquitto_lines("+", sorted(revoked))).encode(),
            "ca.pem": files.ca,
            "server.pem": files.certificate,
            "server.key": files.key,
            "revoked.pem": files.revoked,
        }.items():
            write_file(self._folder / name, data, self._user)
        make_socket_folder(self._folder, self._user)

    # ---- the log, which tells who is connected ----

    async def _read_log(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while True:
            try:
                line = await process.stderr.readline()
            except ValueError:  # longer than any of Mosquitto's
                continue
            if not line:
                return
            self._hear(line.decode("utf-8", "replace").rstrip())

    def _hear(self, line: str) -> None:
        if line.startswith("New client connected"):
            self._connected(line)
        elif line.startswith("Client ") and (gone := DISCONNECTED.match(line)):
            if self._sessions.pop(gone[1], None) is not None:
                self.on_session()
        elif "Reloading config" in line:
            self._reloaded.set()
        elif ("rror" in line or "arning" in line) and NOT_TOLD not in line:
            self._tail = [*self._tail, line][-3:]

    def _connected(self, line: str) -> None:
        found = CONNECTED.fullmatch(line)
        if found is None or " " in found[2]:  # no client id of ours; the lines about it could be taken for others
            self._untold = True
            return
        address, client, user = found.groups()
        if user != ORCHESTRATOR:
            self._sessions[client] = BoardConnection(user, client, address, time.time())
            self.on_session()

    async def _wait_ready(self, process: asyncio.subprocess.Process) -> None:
        deadline = time.monotonic() + START_S
        while True:
            link = MqttLink(self.local, f"ready-{secrets.token_hex(8)}")
            try:
                await link.open()
                await link.close()
                return
            except LinkError as error:
                if process.returncode is not None:
                    raise LinkError(f"the broker ended at once: {await self.ended()}", hint=PORTS) from None
                if time.monotonic() > deadline:
                    raise LinkError(f"the broker did not start within {START_S:.0f} s: {error}", hint=PORTS) from None
            await asyncio.sleep(0.02)


PORTS = "see whether another program has the port (ss -ltnp), or take another one with --mqtt-port"
