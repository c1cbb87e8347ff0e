"""The real Link: an MQTT connection that is made again when it breaks, and the subscriptions that outlive it.

Every connection gets a new paho client, so that no state of a broken one is left. Messages are published with QoS 0,
since every protocol above acknowledges end to end and repeats what matters; only retained ones and the last will use
QoS 1. Measured with transfers on loopback, QoS 0, 1, 2 give 670, 520, 175 MB/s, and QoS 0 takes the least CPU at both
ends and in the broker; Mosquitto dropped nothing, as the receiver's window bounds what is queued.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from edgebed.errors import EdgebedError, LinkError
from edgebed.link.base import Handler
from edgebed.link.connection import Address, Client, Connection, SocketState
from edgebed.link.tls import identity_context
from edgebed.timeouts import timeout

CONNECT_S = 20.0
"""How long a broker may take to answer, TCP and MQTT together: a device under 0.1 CPU needs seconds."""
MIN_BACKOFF_S, MAX_BACKOFF_S = 0.2, 5.0


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
        self._connection: Connection | None = None
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
        connection = Connection(self._make_client(address), self._on_message, self._lost, paced=self._paced)
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
        client = Client(
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

    def _lost(self, connection: Connection) -> None:
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
