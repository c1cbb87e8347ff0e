"""The transfer endpoint: transfers of any size between two peers over two links, and the control messages beside them.

A shell around `edgebed.link.sender` and `edgebed.link.receiver`: it packs frames, publishes, tells the time and awaits
`deliver`. Data goes over its own connection, so that control is never stuck behind it. One endpoint serves one side: an
agent's has one peer (the orchestrator), the orchestrator's has every device.

Hostile messages cost little: unknown names get no state, each peer has an allowance of messages, and dropped messages
are counted and reported once per peer and cause.
"""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections.abc import Awaitable, Callable

from edgebed.errors import TransferError, TransferRefused, WireError
from edgebed.link.allowance import MESSAGES_S, Allowance
from edgebed.link.base import Link
from edgebed.link.peer import Peer, Sending, Sent
from edgebed.link.receiver import ReceivedTransfer, Reply, TransferReceiver
from edgebed.link.sender import Ask, GiveUp, Send, SendChunk, TransferSender
from edgebed.wire.frames import Chunk, Mark, chunk_count, pack_chunk, pack_mark, unpack
from edgebed.wire.messages import Control, Credit, Header, Query, Refuse, decode_control, encode
from edgebed.wire.topics import NAME, ORCHESTRATOR, Topics

__all__ = ["ReceivedTransfer", "Sent", "TransferEndpoint"]

CHUNK_BYTES = 1 << 20
WINDOW = 4
TRANSFERS = 2
MAX_INBOUND_BYTES = 64 << 20
MAX_CONTROL_BYTES = 64 << 10
"""Bytes of a control message. Nothing that an honest peer sends is longer."""


UNREADABLE = "sends what is no message of this protocol"
TOO_LONG = f"sends a control message of more than {MAX_CONTROL_BYTES >> 10} KiB"
FALSE = "speaks for somebody else"
TOO_MANY = f"sends more than {MESSAGES_S:.0f} messages a second"
UNKNOWN = "is not a device of this fleet"


class TransferEndpoint:
    """One side of the link: sends and receives transfers and control messages.

    Args:
        me: the device's name, or ORCHESTRATOR.
        control, data: two links to the same broker. They may be one in tests.
        deliver: awaited with each transfer that arrived, per peer one after the other in the order they were sent; only
            then is the sender told that it is done. Raise TransferRefused to refuse it.
        admit: called at the first chunk with peer, header and total bytes; raise TransferRefused to refuse early.
        on_control: called with the peer and each control message that is not the endpoint's own business. The sender's
            name in the message is checked against its topic; what does not fit is counted in `dropped`.
        on_progress: called with peer and transfer whenever a chunk or a credit moves a transfer.
        known: whether a name is a device of the fleet; asked for each message, so the answer may change. Messages of
            others are dropped, and nothing of them is kept.
        on_dropped: called with a peer's name and the cause the first time that a message of it is dropped for that
            cause; for all unknown names together once.
        chunk_bytes, window: size of a chunk, and how many may be on the way to one peer.
        transfers: how many transfers to one peer may be begun and not done.
        max_inbound_bytes: undelivered bodies held per peer before its window closes.

    Attributes:
        silent: while true, nothing that comes about transfers is kept or answered.
        dropped: messages that were damaged, foreign, false or too many.
        asked, marked, heard: of the one peer of a device, as `edgebed.link.deafness.Signs` has them.
    """

    def __init__(
        self,
        me: str,
        topics: Topics,
        control: Link,
        data: Link,
        *,
        deliver: Callable[[ReceivedTransfer], Awaitable[None]],
        on_control: Callable[[str, Control], None],
        admit: Callable[[str, Header, int], None] = lambda peer, header, total: None,
        on_progress: Callable[[str, str], None] = lambda peer, transfer: None,
        known: Callable[[str], bool] = lambda name: True,
        on_dropped: Callable[[str, str], None] = lambda name, why: None,
        chunk_bytes: int = CHUNK_BYTES,
        window: int = WINDOW,
        transfers: int = TRANSFERS,
        max_inbound_bytes: int = MAX_INBOUND_BYTES,
    ) -> None:
        self._me, self._topics, self._control, self._data = me, topics, control, data
        self._deliver, self._on_control, self._admit, self._on_progress = deliver, on_control, admit, on_progress
        self._known, self._on_dropped = known, on_dropped
        self._chunk_bytes, self._window, self._transfers = chunk_bytes, window, transfers
        self._max_inbound_bytes = max_inbound_bytes
        self._ids = (f"{uuid.uuid4().hex[:16]}-{n}" for n in itertools.count())
        self._peers: dict[str, Peer] = {}
        self._closed = False
        self.silent = False
        self._named: set[tuple[str, str]] = set()  # peers and causes that were told
        self.dropped = 0
        self.asked = self.heard = 0.0
        self.marked: float | None = None

    def start(self) -> None:
        """Subscribe. Call once, in the event loop."""
        topics, me = self._topics, self._me
        if me == ORCHESTRATOR:
            self._control.subscribe(topics.control_from("+"), self._on_control_message)
            self._control.subscribe(topics.state("+"), self._on_control_message)
            self._data.subscribe(topics.data_from("+"), self._on_frame)
        else:
            self._control.subscribe(topics.control_to(me), self._on_control_message)
            self._data.subscribe(topics.data_to(me), self._on_frame)
        self._control.on_connect(self._reconnected)
        if self._data is not self._control:
            self._data.on_connect(self._reconnected)

    async def send(self, peer: str, header: Header, body: bytes | bytearray | memoryview) -> Sent:
        """Send one transfer; returns when the receiver's application has it. Do not change `body` meanwhile.

        A slow or absent receiver is waited for without limit: cancel the call, or `forget` the peer.

        Raises:
            TransferRefused: the receiver said no.
            TransferError: the peer was forgotten, the endpoint was closed, or a chunk was lost again and again.
        """
        if self._closed:
            raise TransferError("the connection was closed", hint="open a new one")
        state, transfer = self._peer(peer), next(self._ids)
        view = memoryview(body).cast("B")
        done: asyncio.Future[Sent] = asyncio.get_running_loop().create_future()
        state.sending[transfer] = Sending(encode(header), view, done, Sent(0, 0, 0, 0))
        self._perform(state, state.outbox.add(transfer, chunk_count(len(view), self._chunk_bytes), time.monotonic()))
        try:
            return await done
        except asyncio.CancelledError:
            self._withdraw(state, [transfer] if transfer in state.outbox.begun() else [])
            self._settle(state, transfer)
            raise

    def control(self, peer: str, message: Control) -> None:
        """Publish a control message; it may be lost, so repeat what matters."""
        topics = self._topics
        topic = topics.control_to(peer) if self._me == ORCHESTRATOR else topics.control_from(self._me)
        self._control.publish(topic, encode(message))

    def forget(self, peer: str) -> None:
        """The peer is gone, or its task is over: fail every send to it, and refuse its transfers that have arrived in
        part or wait to be delivered. Refused transfers are remembered, so a peer that still sends soon gets the
        refusal."""
        state = self._peers.get(peer)
        if state is None:
            return
        self._withdraw(state, state.outbox.begun())
        self._fail(state, TransferError(f"{peer} is gone"))
        delivery, state.delivery = state.delivery, None
        if delivery is not None and delivery is not asyncio.current_task():
            delivery.cancel()
        self._answer(state, state.inbox.refuse_all(f"{self._me} has ended what this was for"))
        if not self._known(peer):
            del self._peers[peer]

    async def close(self) -> None:
        self._closed = True
        deliveries = [p.delivery for p in self._peers.values() if p.delivery is not None]
        for delivery in deliveries:
            delivery.cancel()
        for peer in list(self._peers.values()):
            self._fail(peer, TransferError("the connection was closed"))
        await asyncio.gather(*deliveries, return_exceptions=True)

    # ---- sending -----------------------------------------------------------------------------------------------------

    def _perform(self, peer: Peer, sends: list[Send]) -> None:
        for send in sends:
            match send:
                case SendChunk():
                    self._send_chunk(peer, send)
                case Ask(transfer, number, credited):
                    after = peer.outbox.before(transfer)
                    count = chunk_count(len(peer.sending[transfer].body), self._chunk_bytes)
                    self.control(peer.name, Query(self._me, peer.name, transfer, credited))
                    self._publish_frame(peer, pack_mark(Mark(transfer, after, number, count, credited)))
                    self.marked = self.marked or time.monotonic()
                case GiveUp(transfer, why):
                    self._withdraw(peer, [transfer])
                    self._settle(peer, transfer, TransferError(why, hint="see to the connection to the broker"))
        self._arm(peer)

    def _withdraw(self, peer: Peer, transfers: list[str]) -> None:
        """Tell the receiver that these sends are given up."""
        for transfer in transfers:
            self.control(peer.name, Refuse(self._me, peer.name, transfer, "given up by the sender"))

    def _send_chunk(self, peer: Peer, send: SendChunk) -> None:
        sending = peer.sending[send.transfer]
        after = peer.outbox.before(send.transfer)
        frame = pack_chunk(send.transfer, after, send.index, sending.header, sending.body, self._chunk_bytes)
        sending.sent.first_ns = sending.sent.first_ns or time.monotonic_ns()
        if send.again:
            sending.sent.resent_bytes += len(frame)
        else:
            sending.sent.bytes += len(frame)
        self._publish_frame(peer, frame)

    def _publish_frame(self, peer: Peer, frame: bytes) -> None:
        to_device = self._me == ORCHESTRATOR
        topic = self._topics.data_to(peer.name) if to_device else self._topics.data_from(self._me)
        self._data.publish(topic, frame)

    def _arm(self, peer: Peer) -> None:
        """One timer per peer with sends under way. It is not moved with every credit, so it may fire early."""
        if peer.timer is None and len(peer.outbox) and not self._closed:
            delay = max(0.0, peer.outbox.due - time.monotonic()) + 0.001
            peer.timer = asyncio.get_running_loop().call_later(delay, self._on_timer, peer)

    def _on_timer(self, peer: Peer) -> None:
        peer.timer = None
        self._perform(peer, peer.outbox.silence(time.monotonic()))

    def _settle(self, peer: Peer, transfer: str, error: TransferError | None = None) -> None:
        """A send is over: done, refused, or given up."""
        sending = peer.sending.pop(transfer, None)
        if sending is None:
            return
        self.marked = None
        sending.sent.done_ns = time.monotonic_ns()
        if not sending.done.done():
            if error is None:
                sending.done.set_result(sending.sent)
            else:
                sending.done.set_exception(error)
        self._perform(peer, peer.outbox.remove(transfer, time.monotonic()))

    def _fail(self, peer: Peer, error: TransferError) -> None:
        if peer.timer is not None:
            peer.timer.cancel()
            peer.timer = None
        for sending in peer.sending.values():
            if not sending.done.done():
                sending.done.set_exception(error)
        peer.sending.clear()
        self.marked = None
        peer.outbox = TransferSender(self._window, self._transfers)

    # ---- receiving ---------------------------------------------------------------------------------------------------

    def _on_frame(self, topic: str, payload: bytes) -> None:
        peer = self._sender_of(topic)
        if self.silent or peer is None or not self._allowed(peer, peer.frames):
            return
        try:
            frame = unpack(payload)
        except WireError:
            self._drop(peer.name, UNREADABLE)
            return
        if isinstance(frame, Chunk):
            moved, replies = peer.inbox.chunk(frame, time.monotonic_ns(), len(payload))
            if moved:
                self._on_progress(peer.name, frame.transfer)
        else:
            replies = peer.inbox.mark(frame)
        self._answer(peer, replies)

    def _answer(self, peer: Peer, replies: list[Reply]) -> None:
        for reply in replies:
            self.control(peer.name, reply)
        if peer.delivery is None and (item := peer.inbox.take()) is not None:
            peer.delivery = asyncio.get_running_loop().create_task(self._deliver_from(peer, *item))

    async def _deliver_from(self, peer: Peer, transfer: str, inbound: ReceivedTransfer) -> None:
        refused = ""
        try:
            await self._deliver(inbound)
        except TransferRefused as error:
            refused = str(error) or "refused"
        except Exception as error:
            refused = f"the receiver failed: {type(error).__name__}: {error}"
            context = {"message": f"delivery of a transfer from {peer.name} failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
        finally:
            if peer.delivery is asyncio.current_task():
                peer.delivery = None
        if not self._closed:
            self._answer(peer, peer.inbox.finish(transfer, refused))

    def _on_control_message(self, topic: str, payload: bytes) -> None:
        peer = self._sender_of(topic)
        if peer is None or not self._allowed(peer, peer.messages):
            return
        self.heard = time.monotonic()
        if len(payload) > MAX_CONTROL_BYTES:
            self._drop(peer.name, TOO_LONG)
            return
        try:
            message = decode_control(payload)
        except WireError:
            self._drop(peer.name, UNREADABLE)
            return
        if isinstance(message, Credit | Refuse | Query):
            if not self.silent:
                self._on_transfer_message(peer, message)
        elif self._me == ORCHESTRATOR and getattr(message, "device", peer.name) != peer.name:
            self._drop(peer.name, FALSE)
        else:
            self._on_control(peer.name, message)

    def _on_transfer_message(self, peer: Peer, message: Credit | Refuse | Query) -> None:
        ends = (message.sender, message.receiver)
        if ends == (peer.name, self._me) and isinstance(message, Query):
            self.asked = time.monotonic()
            self._answer(peer, peer.inbox.state(message.transfer, message.credited))
        elif ends == (peer.name, self._me) and isinstance(message, Refuse):
            self._answer(peer, peer.inbox.withdraw(message.transfer))
        elif ends == (self._me, peer.name) and isinstance(message, Refuse):
            self._settle(peer, message.transfer, TransferRefused(message.why))
        elif ends == (self._me, peer.name) and isinstance(message, Credit):
            self._on_credit(peer, message)
        else:
            self._drop(peer.name, FALSE)

    def _on_credit(self, peer: Peer, credit: Credit) -> None:
        if credit.transfer not in peer.sending:
            return
        if credit.done:
            self._on_progress(peer.name, credit.transfer)
            self._settle(peer, credit.transfer)
            return
        moved, sends = peer.outbox.credit(credit, time.monotonic())
        if moved or credit.seen:
            self.marked = None
        if moved:
            self._on_progress(peer.name, credit.transfer)
        self._perform(peer, sends)

    # ---- peers -------------------------------------------------------------------------------------------------------

    def _reconnected(self) -> None:
        """After a reconnect either side may have lost messages: send our state and ask for theirs."""
        for peer in list(self._peers.values()):
            self._answer(peer, peer.inbox.states())
            self._perform(peer, peer.outbox.reconnected(time.monotonic()))

    def _sender_of(self, topic: str) -> Peer | None:
        """The sender of a message, from its topic; None where it is not of the fleet, or after close."""
        if self._closed:
            return None
        if self._me != ORCHESTRATOR:
            return self._peer(ORCHESTRATOR)
        name = self._topics.device_of(topic)
        if NAME.fullmatch(name) and name != ORCHESTRATOR and self._known(name):
            return self._peer(name)
        self._drop(name, UNKNOWN)
        return None

    def _allowed(self, peer: Peer, allowance: Allowance) -> bool:
        if allowance.take(time.monotonic()):
            return True
        self._drop(peer.name, TOO_MANY)
        return False

    def _drop(self, name: str, why: str) -> None:
        """Count a dropped message. Of unknown senders, whose number has no limit, only the first is reported."""
        self.dropped += 1
        key = ("", why) if why == UNKNOWN else (name, why)
        if key not in self._named:
            self._named.add(key)
            self._on_dropped(name, why)

    def _peer(self, name: str) -> Peer:
        if name not in self._peers:
            limits = {"window": self._window, "max_bytes": self._max_inbound_bytes}
            inbox = TransferReceiver(self._me, name, **limits, admit=self._admit)
            self._peers[name] = Peer(name, TransferSender(self._window, self._transfers), inbox)
        return self._peers[name]
