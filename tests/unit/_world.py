"""TransferSender and TransferReceiver joined by three channels that lose, repeat, reorder and break, in simulated
time."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from edgebed.link.receiver import Reply, TransferReceiver
from edgebed.link.sender import Ask, Send, SendChunk, TransferSender
from edgebed.wire.frames import Chunk, Mark, chunk_count, pack_chunk, unpack
from edgebed.wire.messages import Credit, Header, Refuse, encode
from edgebed.wire.messages import Reply as ReplyHeader

SIZE = 10
HEADER = encode(ReplyHeader("task", 0))


def admit(peer: str, header: Header, total: int) -> None: ...


@dataclass
class Channel:
    """One direction: in order, `delay` seconds, unless told otherwise. With `rate`, that many messages a second."""

    random: random.Random
    lose: float = 0.0
    repeat: float = 0.0
    swap: float = 0.0
    delay: float = 0.05
    rate: float = 0.0
    free_at: float = 0.0
    queue: list[tuple[float, object]] = field(default_factory=list)

    def put(self, now: float, item: object) -> None:
        if self.random.random() < self.lose:
            return
        for _ in range(2 if self.random.random() < self.repeat else 1):
            start = max(now, self.free_at)
            self.free_at = start + (1 / self.rate if self.rate else 0.0)
            place = len(self.queue) - 1 if self.queue and self.random.random() < self.swap else len(self.queue)
            self.queue.insert(place, (self.free_at + self.delay, item))

    def get(self, now: float) -> list[object]:
        ready = []
        while self.queue and self.queue[0][0] <= now:
            ready.append(self.queue.pop(0)[1])
        return ready


class World:
    """A sender, a receiver, three channels and a clock."""

    def __init__(
        self, bodies: list[bytes], *, window: int = 3, transfers: int = 2, max_bytes: int = 10**6, **bad: float
    ):
        self.random = random.Random(int(bad.pop("seed", 0)))
        self.bodies = {f"t{i}": body for i, body in enumerate(bodies)}
        self.outbox, self.now = TransferSender(window, transfers), 0.0
        self.window, self.max_bytes, self.admit = window, max_bytes, admit
        self.inbox = self.new_inbox()
        rate = bad.pop("rate", 0.0)
        self.data = Channel(self.random, rate=rate, **bad)
        self.credits, self.queries = Channel(self.random, **bad), Channel(self.random, **bad)
        self.delivered: list[tuple[str, bytes]] = []
        self.done: list[str] = []
        self.refused: dict[str, str] = {}
        self.sent = self.resent = self.asked = self.peak = 0
        self.times: Counter[tuple[str, int]] = Counter()  # each chunk was sent
        self.slow_delivery = 0.0
        self.delivering: tuple[float, str] | None = None

    def new_inbox(self) -> TransferReceiver:
        limits = {"window": self.window, "max_bytes": self.max_bytes, "max_chunk": SIZE}
        return TransferReceiver("orchestrator", "dev", **limits, admit=lambda *asked: self.admit(*asked))

    def start(self) -> None:
        for name, body in self.bodies.items():
            self.perform(self.outbox.add(name, chunk_count(len(body), SIZE), self.now))

    def perform(self, sends: list[Send]) -> None:
        for send in sends:
            after = self.outbox.before(send.transfer)
            if isinstance(send, SendChunk):
                self.sent += 1
                self.times[send.transfer, send.index] += 1
                self.resent += send.again
                body = memoryview(self.bodies[send.transfer])
                self.data.put(self.now, pack_chunk(send.transfer, after, send.index, HEADER, body, SIZE))
            else:
                assert isinstance(send, Ask)
                self.asked += 1
                self.queries.put(self.now, send)
                self.data.put(self.now, Mark(send.transfer, after, send.number, 0, send.credited))

    def answer(self, replies: list[Reply]) -> None:
        for reply in replies:
            self.credits.put(self.now, reply)
        if self.delivering is None and (item := self.inbox.take()) is not None:
            self.delivered.append((item[0], bytes(item[1].body)))
            self.delivering = (self.now + self.slow_delivery, item[0])

    def step(self) -> None:
        """On to the next event, but by 10 ms at least; then whatever is due."""
        events = [channel.queue[0][0] for channel in (self.data, self.credits, self.queries) if channel.queue]
        if self.delivering is not None:
            events.append(self.delivering[0])
        if len(self.outbox):
            events.append(self.outbox.due)
        self.now = max(self.now + 0.01, min(events, default=0.0))
        for item in self.data.get(self.now):
            if isinstance(item, Mark):
                self.answer(self.inbox.mark(item))
            else:
                assert isinstance(item, bytes)
                chunk = unpack(item)
                assert isinstance(chunk, Chunk)
                self.answer(self.inbox.chunk(chunk, int(self.now * 1e9), len(item))[1])
            self.peak = max(self.peak, self.inbox.held_bytes)
        for query in self.queries.get(self.now):
            if isinstance(query, Ask):
                self.answer(self.inbox.state(query.transfer, query.credited))
            else:
                self.answer(self.inbox.withdraw(str(query)))
        if self.delivering is not None and self.delivering[0] <= self.now:
            _, transfer = self.delivering
            self.delivering = None
            self.answer(self.inbox.finish(transfer))
        for reply in self.credits.get(self.now):
            self.on_reply(reply)
        if len(self.outbox):
            self.perform(self.outbox.silence(self.now))

    def on_reply(self, reply: object) -> None:
        assert isinstance(reply, Credit | Refuse)
        if isinstance(reply, Refuse) or reply.done:
            if reply.transfer in self.outbox:
                self.done.append(reply.transfer)
                if isinstance(reply, Refuse):
                    self.refused[reply.transfer] = reply.why
                self.perform(self.outbox.remove(reply.transfer, self.now))
        else:
            self.perform(self.outbox.credit(reply, self.now)[1])

    def give_up(self, transfer: str) -> None:
        """The sender's application does not want it delivered any more."""
        if transfer in self.outbox.begun():
            self.queries.put(self.now, transfer)
        self.perform(self.outbox.remove(transfer, self.now))

    def forget(self) -> None:
        """The receiver starts anew and knows of nothing."""
        self.inbox, self.delivering = self.new_inbox(), None

    def run(self, seconds: float = 600.0) -> World:
        self.start()
        while len(self.outbox) and self.now < seconds:
            self.step()
        return self
