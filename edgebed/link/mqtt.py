"""The real Link: one MQTT 3.1.1 connection, paho driven by asyncio.

paho's external-loop API is used: asyncio watches the socket and calls `loop_read` and `loop_write`, so there is no
thread and handlers run in the event loop. Every connection gets a new paho client, so that no state of a broken one is
left. Messages are published with QoS 0, since every protocol above acknowledges end to end and repeats what
matters; only retained ones and the last will use QoS 1. Measured with transfers on loopback, QoS 0, 1, 2 give 670, 520,
175 MB/s, and QoS 0 takes the least CPU at both ends and in the broker; Mosquitto dropped nothing, as the receiver's
window bounds what is queued.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
from collections.abc import Callable
from typing import Any

import msgspec
import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.reasoncodes import ReasonCode

from edgebed.errors import EdgebedError, LinkError
from edgebed.guarded import Guarded
from edgebed.link.base import Handler
from edgebed.link.read_pauses import ReadPauses
from edgebed.link.sockets import idle_s, readable_bytes, timeval, tune, unacknowledged_bytes
from edgebed.link.tls import Identity, identity_context, reason_of
from edgebed.timeouts import timeout

CONNECT_S = 20.0
"""How long a broker may take to answer, TCP and MQTT together: a device under 0.1 CPU needs seconds."""
FLUSH_S = 2.0
"""How long `close` waits for what is still to be written."""
MIN_BACKOFF_S, MAX_BACKOFF_S = 0.2, 5.0


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

    def __str__(self) -> str:
        return self.host if self.is_path else f"{self.host}:{self.port}"


class SocketState(msgspec.Struct, frozen=True):
    """Of a connection: seconds since a byte arrived, and whether all that was published has reached the broker's
    kernel."""

    idle_s: float
    drained: bool


class MqttLink:
    """One connection to an MQTT broker, which is made again when it breaks.

    Args:
        address: the broker; a function is asked before every connection, and may raise LinkError.
        client_id: unique on the broker; a second connection with the same one ends the first.
        will: topic, payload and retain flag of the message the broker publishes when this connection breaks.
        keepalive_s: the broker ends the connection when it has received no whole packet from us for 1.5 times as long.
            0: never; for data connections, where a single packet may take longer. TCP keepalive still finds a dead
            peer.
        paced: read less often on a slow link. Otherwise every arriving segment wakes paho, which costs several times
            the CPU time per MB at 10 Mbit/s (`benchmarks/download.py`). In the middle of a packet the socket is not
            read for 2 to 40 ms, but no longer than the rest of the packet needs. Messages that arrive in one piece
            never wait.
    """

    def __init__(
        self,
        address: Address | Callable[[], Address],
        client_id: str,
        *,
        will: tuple[str, bytes, bool] | None = None,
        keepalive_s: int = 15,
        paced: bool = False,
    ) -> None:
        self._address = address if callable(address) else lambda: address
        self._client_id, self._will = client_id, will
        self._keepalive_s, self._paced = keepalive_s, paced
        self._subscriptions: list[tuple[str, Handler]] = []
        self._callbacks: list[Callable[[], None]] = []
        self._connection: _Connection | None = None
        self._reconnecting: asyncio.Task[None] | None = None
        self._closing = False

    @property
    def connected(self) -> bool:
        return self._connection is not None

    async def open(self) -> None:
        """Connect and wait until the subscriptions made so far hold. Raises LinkError with cause and hint."""
        self._closing = False
        await self._connect()

    async def close(self) -> None:
        self._closing = True
        if self._reconnecting is not None:
            self._reconnecting.cancel()
            await asyncio.gather(self._reconnecting, return_exceptions=True)
            self._reconnecting = None
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    def subscribe(self, topic: str, handler: Handler) -> None:
        self._subscriptions.append((topic, handler))
        if self._connection is not None:
            self._connection.subscribe(topic)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        if self._connection is not None:
            self._connection.client.publish(topic, payload, 1 if retain else 0, retain)

    def on_connect(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def state(self) -> SocketState | None:
        """Of a connection over TCP; None while there is none."""
        return None if self._connection is None else self._connection.state()

    def reopen(self) -> None:
        """Close the connection at once and make a new one."""
        if (connection := self._connection) is not None:
            connection.abort()
            self._lost(connection)

    async def _connect(self) -> None:
        address = self._address()
        connection = _Connection(self._make_client(address), self._on_message, self._lost, paced=self._paced)
        try:
            async with timeout(CONNECT_S):
                await connection.open(address, self._keepalive_s)
                await asyncio.gather(*[connection.subscribe(topic) for topic, _ in self._subscriptions])
            connection.check()
        except TimeoutError:
            connection.abort()
            raise LinkError(
                f"the MQTT broker at {address} did not answer within {CONNECT_S:.0f} s",
                hint="check that the port is a broker's and that no firewall stands between",
            ) from None
        except ConnectionError as error:
            connection.abort()
            raise LinkError(
                f"the MQTT broker at {address} closed the connection at once: {error}", hint="try again"
            ) from None
        except BaseException:
            connection.abort()
            raise
        self._connection = connection

    def _make_client(self, address: Address) -> paho.Client:
        client = _Client(
            CallbackAPIVersion.VERSION2, self._client_id, clean_session=True, protocol=paho.MQTTv311,
            transport="unix" if address.is_path else "tcp", reconnect_on_failure=False,
        )  # fmt: skip
        client.connect_timeout = CONNECT_S / 2
        client.max_inflight_messages_set(0)
        if address.username:
            client.username_pw_set(address.username, address.password)
        if address.identity is not None:  # read again for every connection: a certificate may be a new one
            client.tls_set_context(identity_context(address.identity))
        if self._will is not None:
            topic, payload, retain = self._will
            client.will_set(topic, payload, qos=1, retain=retain)
        return client

    def _on_message(self, topic: str, payload: bytes) -> None:
        for wanted, handler in list(self._subscriptions):
            if wanted == topic or paho.topic_matches_sub(wanted, topic):
                handler(topic, payload)

    def _lost(self, connection: _Connection) -> None:
        """A connection broke by itself. Of one that is still being made, `_connect` tells."""
        if connection is not self._connection:
            return
        self._connection = None
        if not self._closing:
            self._reconnecting = asyncio.get_running_loop().create_task(self._reconnect())

    async def _reconnect(self) -> None:
        backoff = MIN_BACKOFF_S
        while True:
            await asyncio.sleep(backoff * random.uniform(0.5, 1.0))
            with contextlib.suppress(EdgebedError):
                await self._connect()
                break
            backoff = min(backoff * 2, MAX_BACKOFF_S)
        for callback in self._callbacks:
            callback()


class _Client(paho.Client):
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


class _Connection:
    """One TCP connection's life: a paho client, its socket watched by the event loop."""

    def __init__(
        self,
        client: paho.Client,
        on_message: Callable[[str, bytes], None],
        on_lost: Callable[[_Connection], None],
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
