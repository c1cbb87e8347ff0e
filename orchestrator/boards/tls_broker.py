"""Mosquitto for boards: TLS with client certificates for them, a Unix socket and a password for the orchestrator.

Works with Mosquitto 2.0.11 (Debian 12) and 2.1. The certificate's common name is the user name. The ACL names every
board that may connect, with its topics; who is not in it has no right and no session.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import resource
import secrets
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from edgebed.errors import LinkError
from edgebed.guarded import Guarded
from edgebed.link.connection import Address
from edgebed.link.mqtt import MqttLink
from edgebed.timeouts import end
from edgebed.wire.topics import ORCHESTRATOR
from orchestrator.boards.service_folder import BoardConnection
from orchestrator.broker.acl import board_lines
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

MOST_SESSIONS = 8
"""Of one board. It needs two, and two more while it is replaced."""

MIB_PER_BOARD, OTHER_MIB = 128, 256
"""Memory of the broker. A board can make it keep a message of 8 MiB on each of its four topics, and in each session."""

BUFFERS_MIB = 512
"""Beside what the broker counts itself: buffers of TLS, and what the allocator has not given back."""

HANGS_S = 20.0
"""A broker that does not read its files for so long is restarted in any case."""

CUT_OFF = 900
"""Mosquitto cuts lines of its log off at 1000 bytes. What such a line says of a client, the client may have made up."""

CONNECTED = re.compile(r"New client connected from (\S*) as (.*) \(p\d+, c\d+, k\d+, u'([^']*)'\)\.")
DISCONNECTED = re.compile(r"Client (\S+) (?:\[\S+\] )?(?:closed its connection|disconnected|has exceeded timeout)")
PLAIN = re.compile(r"[A-Za-z0-9_.-]{1,300}")
"""Ids of clients of ours. Others are closed: lines about them could be taken for lines about others."""


class Files(Guarded, frozen=True):
    """What the broker reads, all PEM."""

    ca: bytes
    certificate: bytes
    key: bytes
    revoked: bytes


def settings(folder: Path, listen: str, port: int, boards: int = 0) -> list[str]:
    """The lines of mosquitto.conf, for so many boards. Its log tells who connects."""
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
        "persistent_client_expiration 1h",
        f"memory_limit {memory_mib(boards) << 20}",
        "",
    ]


def memory_mib(boards: int) -> int:
    """Of the messages that a broker may keep for so many boards. Who sends more is cut off."""
    return OTHER_MIB + MIB_PER_BOARD * boards


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
        hashed = password_hash(self.local.password, secrets.token_bytes(12))
        self._passwords = f"{ORCHESTRATOR}:{hashed}\n".encode()
        self._where = listen, port
        self._boards: dict[str, str] = {}
        self._written: dict[str, bytes] = {}
        self._unread_since: float | None = None  # the broker has not read what is written
        self._lost = set[str]()  # boards that may no longer connect, since it has read
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._tail: list[str] = []
        self._reloaded = asyncio.Event()
        self._sessions: dict[str, BoardConnection] = {}
        self._odd: set[str] = set()  # client ids that are being closed
        self._closing: set[asyncio.Task[None]] = set()
        self._untold = False  # a session whose user the log does not tell, or that could not be closed
        self.on_session: Callable[[], None] = lambda: None

    @property
    def sessions(self) -> tuple[BoardConnection, ...]:
        return tuple(self._sessions.values())

    async def start(self, files: Files, boards: Mapping[str, str]) -> None:
        """Returns when it can be used. Raises LinkError. `boards`: those that may connect, by id: the fleet that each
        works for, or ""."""
        program = binary()
        if program is None:
            raise LinkError("Mosquitto is not installed: only it serves boards", hint="apt install mosquitto")
        self._boards = dict(boards)
        self._write_all(files)
        nothing, pipe = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE
        command = [program, "-c", str(self._folder / "mosquitto.conf")]
        self._process = await begin(command, self._user, stdin=nothing, stdout=nothing, stderr=pipe)
        self._reader = asyncio.create_task(self._read_log(self._process))
        await self._wait_ready(self._process)
        self._all_read()

    async def stop(self) -> None:
        process, self._process = self._process, None
        await end(process, END_S)
        if self._reader is not None:
            await self._reader
        await asyncio.gather(*self._closing, return_exceptions=True)
        self._sessions, self._odd, self._untold = {}, set(), False

    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def ended(self) -> str:
        """Waits for the broker's end; returns what it said last."""
        assert self._process is not None
        assert self._reader is not None
        await self._process.wait()
        await self._reader
        return f"exit code {self._process.returncode}: {' / '.join(self._tail)}"

    async def enforce(self, files: Files, boards: Mapping[str, str]) -> bool:
        """Let these boards in and no other, as for `start`. One that is no longer among them loses its rights when the
        broker has read its files; its sessions end when the orchestrator takes over their client ids. Where that fails,
        or a session has a client id that is not known, the broker is restarted; never where nobody loses his place.

        Returns:
            False where the broker has not read its files in time: it is to be called again.

        Raises:
            FileError: a file cannot be written.
            LinkError: the broker cannot be restarted.
        """
        self._lost |= self._boards.keys() - boards.keys()
        self._boards = dict(boards)
        self._write_all(files)
        if self._unread_since is None:
            return True
        if not (self._lost and self._untold):
            with contextlib.suppress(TimeoutError, LinkError, ProcessLookupError):
                await self._reload()
                await asyncio.gather(*[self._take_over(each) for each in self.sessions if each.board in self._lost])
                self._all_read()
                return True
        if not self._lost and time.monotonic() - self._unread_since < HANGS_S:
            return False
        await self.stop()
        await self.start(files, boards)
        return True

    def _all_read(self) -> None:
        self._unread_since, self._lost = None, set()
        most = memory_mib(len(self._boards)) + BUFFERS_MIB << 20
        if self._process is not None:
            with contextlib.suppress(OSError):  # a container without CAP_SYS_RESOURCE: the broker's own limit holds
                resource.prlimit(self._process.pid, resource.RLIMIT_DATA, (most, resource.RLIM_INFINITY))

    async def _reload(self) -> None:
        """Have the broker read its files; open connections stay. Raises TimeoutError."""
        assert self._process is not None
        self._reloaded.clear()
        self._process.send_signal(signal.SIGHUP)
        async with asyncio.timeout(RELOAD_S):
            await self._reloaded.wait()

    # ---- closing sessions ----

    async def _take_over(self, session: BoardConnection) -> None:
        """Connect with its client id, whereupon the broker closes the other connection."""
        link = MqttLink(self.local, session.client)
        async with asyncio.timeout(KICK_S):
            await link.open()
        await link.close()
        if self._sessions.get(session.client) is session:
            del self._sessions[session.client]
        self.on_session()

    def _close_soon(self, session: BoardConnection) -> None:
        task = asyncio.create_task(self._close(session))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _close(self, session: BoardConnection) -> None:
        try:
            await self._take_over(session)
        except (TimeoutError, LinkError):
            self._untold = True

    # ---- files ----

    def _write_all(self, files: Files) -> None:
        """What has changed. Raises FileError."""
        for name, data in {
            "mosquitto.conf": "\n".join(settings(self._folder, *self._where, len(self._boards))).encode(),
            "passwords": self._passwords,
            "acl": "\n".join(board_lines(self._boards)).encode(),
            "ca.pem": files.ca,
            "server.pem": files.certificate,
            "server.key": files.key,
            "revoked.pem": files.revoked,
        }.items():
            if self._written.get(name) != data:
                self._unread_since = self._unread_since or time.monotonic()
                write_file(self._folder / name, data, self._user)
                self._written[name] = data
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
        elif line.startswith("Client "):
            self._disconnected(line)
        elif "Reloading config" in line:
            self._reloaded.set()
        elif ("rror" in line or "arning" in line) and NOT_TOLD not in line:
            self._tail = [*self._tail, line][-3:]

    def _connected(self, line: str) -> None:
        found = CONNECTED.fullmatch(line) if len(line) < CUT_OFF else None
        if found is None:
            self._untold = True
            return
        address, client, user = found.groups()
        if user == ORCHESTRATOR:
            return
        session = BoardConnection(user, client, address, time.time())
        self._sessions.pop(client, None)  # the newest one comes last
        if not PLAIN.fullmatch(client):
            self._odd.add(client)
        elif user in self._boards:  # else its connection is older than its revocation
            self._sessions[client] = session
            self.on_session()
            own = [each for each in self.sessions if each.board == user]
            if len(own) <= MOST_SESSIONS:
                return
            session = self._sessions.pop(own[0].client)
        self._close_soon(session)

    def _disconnected(self, line: str) -> None:
        for odd in self._odd:
            if line.startswith(f"Client {odd} ") and DISCONNECTED.match(f"Client x{line[7 + len(odd) :]}"):
                self._odd.discard(odd)
                return
        gone = DISCONNECTED.match(line) if len(line) < CUT_OFF else None
        if gone is not None and self._sessions.pop(gone[1], None) is not None:
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
