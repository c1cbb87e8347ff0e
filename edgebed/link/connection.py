"""One MQTT 3.1.1 connection over TCP, TLS or a Unix socket: paho driven by asyncio, from the dial to the end.

paho's external-loop API is used: asyncio watches the socket and calls `loop_read` and `loop_write`, so there is no
thread and handlers run in the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import msgspec
import paho.mqtt.client as paho
from paho.mqtt.reasoncodes import ReasonCode

from edgebed.errors import LinkError, UsageError
from edgebed.guarded import Guarded
from edgebed.link.read_pauses import ReadPauses
from edgebed.link.sockets import idle_s, readable_bytes, timeval, tune, unacknowledged_bytes
from edgebed.link.tls import Identity, reason_of
from edgebed.timeouts import timeout

FLUSH_S = 2.0
"""How long `close` waits for what is still to be written."""


class Address(Guarded, frozen=True):
    """Where a broker listens, and our user name and password, or our certificate where it speaks TLS. `host` is a name,
    an address, or the path of a Unix socket, which has no port (0)."""

    host: str
    port: int
    username: str = ""
    password: str = ""
    identity: Identity | None = None

    @property
    def is_path(self) -> bool:
        return self.host.startswith("/")

    @property
    def url(self) -> str:
        """With user and password, as an agent is told it."""
        return f"mqtt://{quote(self.username, safe='')}:{quote(self.password, safe='')}@{self.host}:{self.port}"

    def __str__(self) -> str:
        return self.host if self.is_path else f"{self.host}:{self.port}"


WRITE = "write mqtts://host:port with --broker-ca, or mqtt://host:port for a broker on this host"


def parse_url(url: str, hint: str = WRITE) -> Address:
    """Host, port and user of a broker's address. Raises UsageError, without the password."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        why = "" if "@" in url else f": {error}"  # it repeats a part of the address, which may be of the password
        raise UsageError(f"{hide_user(url)!r} is no broker's address{why}", hint=hint) from None
    plain = url.isprintable() and url == url.strip()  # else the scheme may be another one for who looks at the text
    bare = parts.path in ("", "/") and not parts.query and not parts.fragment
    if not (plain and bare and parts.hostname and parts.scheme in ("mqtt", "mqtts")):
        raise UsageError(f"{hide_user(url)!r} is no broker's address", hint=hint)
    port = port or (8883 if parts.scheme == "mqtts" else 1883)
    return Address(parts.hostname, port, unquote(parts.username or ""), unquote(parts.password or ""))


def hide_user(url: str) -> str:
    """The url without what stands before the host."""
    scheme, mark, rest = url.rpartition("@")
    return rest if mark else scheme or url


class SocketState(msgspec.Struct, frozen=True):
    """Of a connection: seconds since a byte arrived, and whether all that was published has reached the broker's
    kernel."""

    idle_s: float
    drained: bool


class Client(paho.Client):
    """Waits no longer for a Unix socket than for TCP. paho would wait for ever where the broker accepts nobody. The
    method is a private one of paho's; a paho that does not call it waits as before."""

    def _create_unix_socket_connection(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        # With Python's time-out it would not wait at all, but fail where more connect than the broker has accepted.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval(self.connect_timeout))
        try:
            sock.connect(self.host)
        except OSError:
            sock.close()
            raise
        return sock


class Connection:
    """One TCP connection's life: a paho client, its socket watched by the event loop."""

    def __init__(
        self,
        client: paho.Client,
        on_message: Callable[[str, bytes], None],
        on_lost: Callable[[Connection], None],
        *,
        paced: bool,
    ) -> None:
        self.client = client
        self._on_message_callback, self._on_lost, self._paced = on_message, on_lost, paced
        self._loop = asyncio.get_running_loop()
        self._accepted: asyncio.Future[None] = self._loop.create_future()
        self._granted: dict[int, asyncio.Future[None]] = {}
        self._sock: socket.socket | None = None
        self._misc: asyncio.TimerHandle | None = None
        self._pacer = ReadPauses()
        self._resume: asyncio.TimerHandle | None = None
        self._open = False
        self._gone = asyncio.Event()

    async def open(self, address: Address, keepalive_s: int) -> None:
        """Returns when the broker has accepted us. Raises LinkError."""
        await self._dial(address, keepalive_s)
        self._attach(keepalive_s)
        try:
            await self._accepted
        except ConnectionError as error:
            raise LinkError(
                f"the MQTT broker at {address} refused us: {error}",
                hint="check user name and password (mqtt://user:password@host:port)"
                if address.identity is None
                else "see whether this board is revoked: edgebed boards ls",
            ) from None
        self._open = True

    async def close(self) -> None:
        """Write what is pending, send DISCONNECT, close the socket."""
        self._open = False
        self.client.disconnect()
        with contextlib.suppress(TimeoutError):
            async with timeout(FLUSH_S):
                await self._gone.wait()  # paho closes the socket when its DISCONNECT is written
        self.abort()

    def check(self) -> None:
        """Raises ConnectionError if the connection has broken since it was opened."""
        if not self._open:
            raise ConnectionError("the connection broke")

    def state(self) -> SocketState | None:
        if self._sock is None:
            return None
        return SocketState(idle_s(self._sock), not self.client.want_write() and not unacknowledged_bytes(self._sock))

    def abort(self) -> None:
        self._open = False
        sock = self._sock or self.client.socket()
        self._detach()
        if isinstance(sock, socket.socket):
            sock.close()
        for waiter in [self._accepted, *self._granted.values()]:
            waiter.cancel()

    def subscribe(self, topic: str) -> asyncio.Future[None]:
        """Returns a future that is done when the broker has granted it."""
        granted = self._loop.create_future()
        result, mid = self.client.subscribe(topic, qos=2)  # the broker delivers with the publisher's QoS
        if result == paho.MQTT_ERR_SUCCESS and mid is not None:
            self._granted[mid] = granted
        else:
            granted.set_exception(ConnectionError("the connection broke"))
            granted.exception()  # it need not be waited for
        return granted

    # ---- connecting --------------------------------------------------------------------------------------------------

    async def _dial(self, address: Address, keepalive_s: int) -> None:
        """paho resolves and connects in a blocking way, so it runs in a thread; a connection that succeeds too late is
        closed."""
        port = address.port or 1  # paho wants one, also for a path
        dialing = self._loop.run_in_executor(None, self.client.connect, address.host, port, keepalive_s)
        try:
            await asyncio.shield(dialing)
        except asyncio.CancelledError:
            dialing.add_done_callback(self._abandon)
            raise
        except socket.gaierror as error:
            raise LinkError(
                f"the MQTT broker's host {address.host!r} is unknown: {error}", hint="check the broker's host name"
            ) from None
        except ssl.SSLError as error:
            raise LinkError(
                f"the MQTT broker at {address} and we do not trust each other: {reason_of(error)}",
                hint="see whether the clock is right and who answers at this address",
            ) from None
        except (OSError, ValueError) as error:
            raise LinkError(
                f"the MQTT broker at {address} cannot be reached: {error}",
                hint="see whether its program has ended"
                if address.is_path
                else "check that the broker runs, listens on this address, and that no firewall stands between",
            ) from None

    def _abandon(self, dialed: asyncio.Future[Any]) -> None:
        if not dialed.cancelled() and dialed.exception() is None:
            self.abort()

    def _attach(self, keepalive_s: int) -> None:
        sock = self.client.socket()
        if not isinstance(sock, socket.socket):
            raise LinkError("the MQTT broker closed the connection at once", hint="check that the port is a broker's")
        self._sock = sock
        tune(sock)
        client = self.client
        client.on_connect = self._on_connack
        client.on_subscribe = self._on_suback
        client.on_message = self._on_paho_message
        client.on_disconnect = self._on_disconnect
        client.on_socket_close = lambda *_: self._detach()
        client.on_socket_register_write = lambda *_: self._loop.add_writer(sock, client.loop_write)
        client.on_socket_unregister_write = lambda *_: self._unwatch_writes(sock)
        self._loop.add_reader(sock, self._on_readable)
        if client.want_write():
            self._loop.add_writer(sock, client.loop_write)
        if keepalive_s:
            self._misc = self._loop.call_later(1.0, self._on_misc)

    def _unwatch_writes(self, sock: socket.socket) -> None:
        if sock.fileno() >= 0:
            self._loop.remove_writer(sock)

    def _detach(self) -> None:
        self._gone.set()
        for handle in (self._misc, self._resume):
            if handle is not None:
                handle.cancel()
        sock, self._sock = self._sock, None
        if sock is not None and sock.fileno() >= 0:
            self._loop.remove_reader(sock)
            self._loop.remove_writer(sock)

    # ---- the socket --------------------------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        arrived = readable_bytes(self._sock) if self._paced and self._sock is not None else 0
        self.client.loop_read()
        while _decrypted_bytes(self._sock):  # read from the socket already, so the event loop will not call again
            self.client.loop_read()
        if not self._paced:
            return
        pause_s = self._pacer.pause_s(arrived, _missing_bytes(self.client), self._loop.time())
        if pause_s and self._sock is not None:
            self._loop.remove_reader(self._sock)
            self._resume = self._loop.call_later(pause_s, self._watch)

    def _watch(self) -> None:
        if self._sock is not None:
            self._loop.add_reader(self._sock, self._on_readable)

    def _on_misc(self) -> None:
        """paho sends its pings here, and notices that one was not answered."""
        self._misc = self._loop.call_later(1.0, self._on_misc)
        self.client.loop_misc()

    # ---- paho's callbacks, in the event loop -------------------------------------------------------------------------

    def _on_connack(self, client: Any, userdata: Any, flags: Any, reason: ReasonCode, properties: Any) -> None:
        if self._accepted.done():
            return
        if reason.is_failure:
            self._accepted.set_exception(ConnectionError(str(reason)))
        else:
            self._accepted.set_result(None)

    def _on_suback(self, client: Any, userdata: Any, mid: int, reasons: list[ReasonCode], properties: Any) -> None:
        granted = self._granted.pop(mid, None)
        if granted is not None and not granted.done():
            granted.set_result(None)

    def _on_paho_message(self, client: Any, userdata: Any, message: paho.MQTTMessage) -> None:
        """An exception here would leave paho's parser half-way through the packet."""
        try:
            self._on_message_callback(message.topic, bytes(message.payload))
        except Exception as error:
            context = {"message": f"a handler of MQTT topic {message.topic!r} failed", "exception": error}
            self._loop.call_exception_handler(context)

    def _on_disconnect(self, client: Any, userdata: Any, flags: Any, reason: ReasonCode, properties: Any) -> None:
        for waiter in [self._accepted, *self._granted.values()]:
            if not waiter.done():
                waiter.set_exception(ConnectionError(str(reason)))
                waiter.exception()  # subscriptions need not be waited for
        if self._open:
            self._open = False
            self._on_lost(self)


def _missing_bytes(client: paho.Client) -> int:
    """Bytes that the packet paho is reading still lacks. This is a private attribute of paho; without it, reads are not
    paced."""
    return int(getattr(client, "_in_packet", {}).get("to_process", 0))


def _decrypted_bytes(sock: socket.socket | None) -> int:
    """Bytes of a TLS record that OpenSSL has decrypted and paho has not read."""
    return sock.pending() if isinstance(sock, ssl.SSLSocket) and sock.fileno() >= 0 else 0
