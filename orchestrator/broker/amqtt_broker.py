"""amqtt's broker (version 0.12.1), mended where it fails a fleet. It is to be replaced or dropped at the first amqtt
that it does not fit; `tests/unit/test_amqtt.py` tells.

What amqtt does, and what this class does instead (`tests/component/test_embedded_broker.py` has a test of each):

- It delivers with the QoS of the subscription and forgets a message that is not acknowledged within 5 s. On a slow or
  interrupted link the acknowledgement comes later, so the message is lost, and those behind it too. Here everything is
  delivered with QoS 0, and TCP repeats.
- It keeps an old connection when its client connects again, and knows sessions by the client's id. So a late SUBSCRIBE
  of the old connection keeps the new one from subscribing, and cleaning up after the old one deletes subscriptions of
  the new one: the client is connected and hears nothing. Here a client has one connection, and everything that belongs
  to a connection ends with it.
- A client whose password is wrong replaces one of the same id. Here it is refused first.
- It waits for a cut link before it goes on with others, never ends a client that is silent beyond its keepalive, and
  stands still for good when a socket reports a timeout.
- It sends a new client what is retained for the subscriptions of all others.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from typing import Any

from amqtt import broker
from amqtt.adapters import StreamReaderAdapter, StreamWriterAdapter
from amqtt.contexts import Action
from amqtt.errors import MQTTError
from amqtt.mqtt.constants import QOS_0
from amqtt.mqtt.disconnect import DisconnectPacket
from amqtt.mqtt.protocol.broker_handler import BrokerProtocolHandler
from amqtt.session import Session

from orchestrator.broker.acl import may

LARGEST_MESSAGE = 8 << 20
"""Bytes; a frame of ours is a chunk and a header, 5 MiB at most."""
CONNECT_S = 20.0
"""Seconds that a new connection may take to say who it is."""
REFUSED = 0x80


class Reader(StreamReaderAdapter):  # type: ignore[misc]
    """Every error of the socket is the end of the connection. amqtt tries again after a timeout that the kernel
    reports, without end and without letting others run."""

    async def read(self, n: int = -1) -> bytes:
        if n > LARGEST_MESSAGE:
            raise ConnectionResetError(f"a message of {n} bytes is too large")
        try:
            data: bytes = await super().read(n)
        except OSError as error:
            raise ConnectionResetError(str(error)) from None
        return data


class Writer(StreamWriterAdapter):  # type: ignore[misc]
    """Closes at once. To write what is pending may take a quarter of an hour on a cut link."""

    def abort(self) -> None:
        self.is_closed = True
        self._writer.transport.abort()

    async def close(self) -> None:
        self.abort()


class Handler(BrokerProtocolHandler):  # type: ignore[misc]
    """The packets of one connection."""

    def handle_read_timeout(self) -> None:
        """Nothing came for one and a half times the keepalive."""
        if self.writer is not None:
            self.writer.abort()

    @property
    def ended(self) -> bool:
        """Whether the connection broke before anybody waited for its end; amqtt does not notice."""
        return bool(self._reader_stopped.is_set())


class Broker(broker.Broker):  # type: ignore[misc]
    """One connection per client. It begins in `_handle_client_session` and ends in `_end`, whatever ends it. A user
    cannot take the place of another one's connection. `fleet`: id of the fleet; its devices' users have the rights of
    `orchestrator.broker.acl`."""

    fleet = ""

    # ---- a connection's life -----------------------------------------------------------------------------------------

    async def stream_connected(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, listener_name: str
    ) -> None:
        try:
            await self._client_connected(listener_name, Reader(reader), Writer(writer))
        finally:
            writer.transport.abort()

    async def _initialize_client_session(
        self, reader: Reader, writer: Writer, remote_address: str, remote_port: int
    ) -> tuple[Handler, Session]:
        """Read the CONNECT. Nothing of an earlier connection is touched, since nobody has shown a password yet."""
        try:
            async with asyncio.timeout(CONNECT_S):
                handler, session = await Handler.init_from_connect(reader, writer, self.plugins_manager)
        except TimeoutError:
            raise MQTTError(f"no CONNECT within {CONNECT_S:.0f} s") from None
        session.clean_session = True  # no session outlives its connection
        session.keep_alive = math.ceil(1.5 * session.keep_alive)
        return handler, session

    async def _handle_client_session(
        self, reader: Reader, writer: Writer, session: Session, handler: Handler, server: Any, listener_name: str
    ) -> None:
        handler.attach(session, reader, writer)
        replaced = self._sessions.get(session.client_id)
        known = await self._authenticate(session, self.listeners_config[listener_name])
        if not known or (replaced is not None and replaced[0].username != session.username):
            await handler.mqtt_connack_authorize(False)
            return
        replaced = self._sessions.get(session.client_id)
        self._sessions[session.client_id] = (session, handler)
        session.transitions.connect()
        try:
            if replaced is not None:
                await self._end(*replaced)
            await handler.mqtt_connack_authorize(True)
            await handler.start()
            if not handler.ended:
                await self._client_message_loop(session, handler)
        finally:
            await self._end(session, handler)

    async def _handle_disconnect(self, session: Session, handler: Handler, waiter: asyncio.Future[Any]) -> None:
        """The message loop ends, and then the connection (`_end`). Who says goodbye leaves no will."""
        if isinstance(waiter.result(), DisconnectPacket):
            session.will_flag = False

    async def _end(self, session: Session, handler: Handler) -> None:
        """End a connection: its subscriptions, its will, its socket. Of several calls the first does it."""
        if session.transitions.state != "connected":
            return
        session.transitions.disconnect()
        self._unsubscribe_all(session)
        if self._is_current(session):
            del self._sessions[session.client_id]
        if session.will_flag and await self._topic_filtering(session, session.will_topic, Action.PUBLISH):
            will = (session.will_topic, session.will_message, session.will_qos)
            await self._broadcast_message(session, *will)
            if session.will_retain:
                await self.retain_message(session, *will)
        handler.writer.abort()
        await self._stop_handler(handler)

    async def _session_monitor(self) -> None:
        """Nothing to look for: sessions end with their connections."""

    async def _cleanup_session(self, client_id: str) -> None:
        if client_id in self._sessions:
            await self._end(*self._sessions[client_id])

    def _is_current(self, session: Session) -> bool:
        return self._sessions.get(session.client_id, (None, None))[0] is session

    def _get_handler(self, session: Session) -> Handler | None:
        return self._sessions[session.client_id][1] if self._is_current(session) else None

    async def _topic_filtering(self, session: Session, topic: str, action: Action) -> bool:
        return may(self.fleet, session.username or "", topic, write=action == Action.PUBLISH)

    # ---- subscriptions and messages ----------------------------------------------------------------------------------

    async def add_subscription(self, subscription: tuple[str, int], session: Session) -> int:
        code: int = await super().add_subscription((subscription[0], QOS_0), session)
        if not self._is_current(session):  # it ended meanwhile
            self._unsubscribe_all(session)
            return REFUSED
        return code

    def _unsubscribe_all(self, session: Session) -> None:
        for topic in list(self._subscriptions):
            self._del_subscription(topic, session)

    def _del_subscription(self, a_filter: str, session: Session) -> int:
        """Returns how many were deleted."""
        held = self._subscriptions.get(a_filter, [])
        left = [(one, qos) for one, qos in held if one is not session]
        if left:
            self._subscriptions[a_filter] = left
        else:
            self._subscriptions.pop(a_filter, None)
        return len(held) - len(left)

    async def _publish_retained_messages_for_subscription(
        self, subscription: tuple[str, int], session: Session
    ) -> None:
        await super()._publish_retained_messages_for_subscription((subscription[0], QOS_0), session)

    async def _run_broadcast(self, running_tasks: deque[asyncio.Task[Any]]) -> None:
        """One message to its subscribers, found by their filter. amqtt compares it with every filter of every client
        and may lose it when one subscribes meanwhile."""
        message = await self._broadcast_queue.get()
        topic, data = message["topic"], message["data"]
        filters = [name for name in self._subscriptions if ("+" in name or "#" in name) and self._matches(topic, name)]
        for name in (topic, *filters):
            for session, _ in self._subscriptions.get(name, ()):
                handler = self._get_handler(session)
                if handler is not None:
                    send = handler.mqtt_publish(topic, data, QOS_0, retain=False)
                    running_tasks.append(asyncio.ensure_future(send))
