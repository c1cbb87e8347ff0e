"""Outbox and Inbox against each other over a channel that loses, repeats, reorders and breaks, in simulated time."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgebed.errors import TransferRefused
from edgebed.link.inbox import Inbox, Reply
from edgebed.link.outbox import Outbox, Send, SendChunk
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
        self.outbox, self.now = Outbox(window, transfers), 0.0
        self.inbox = Inbox("orchestrator", "dev", window=window, max_bytes=max_bytes, admit=admit)
        rate = bad.pop("rate", 0.0)
        self.data = Channel(self.random, rate=rate, **bad)
        self.credits, self.queries = Channel(self.random, **bad), Channel(self.random, **bad)
        self.delivered: list[tuple[str, bytes]] = []
        self.done: list[str] = []
        self.sent = self.resent = self.asked = self.peak = 0
        self.slow_delivery = 0.0
        self.delivering: tuple[float, str] | None = None

    def start(self) -> None:
        for name, body in self.bodies.items():
            self.perform(self.outbox.add(name, chunk_count(len(body), SIZE), self.now))

    def perform(self, sends: list[Send]) -> None:
        for send in sends:
            after = self.outbox.before(send.transfer)
            if isinstance(send, SendChunk):
                self.sent += 1
                self.resent += send.again
                body = memoryview(self.bodies[send.transfer])
                self.data.put(self.now, pack_chunk(send.transfer, after, send.index, HEADER, body, SIZE))
            else:
                self.asked += 1
                self.queries.put(self.now, send.transfer)
                self.data.put(self.now, Mark(send.transfer, after, send.number, 0))

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
        for transfer in self.queries.get(self.now):
            self.answer(self.inbox.state(str(transfer)))
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
                self.perform(self.outbox.remove(reply.transfer, self.now))
        else:
            self.perform(self.outbox.credit(reply, self.now)[1])

    def run(self, seconds: float = 600.0) -> World:
        self.start()
        while len(self.outbox) and self.now < seconds:
            self.step()
        return self


bodies = st.lists(st.binary(max_size=95), min_size=1, max_size=6)


@given(bodies, st.integers(1, 5), st.integers(1, 3))
@settings(deadline=None)
def test_on_a_good_channel_each_chunk_is_sent_once(bodies: list[bytes], window: int, transfers: int) -> None:
    world = World(bodies, window=window, transfers=transfers).run()
    assert world.delivered == list(world.bodies.items())
    assert (world.resent, world.asked) == (0, 0)


@given(
    bodies,
    st.integers(0, 2**31),
    st.floats(0, 0.4),
    st.floats(0, 0.4),
    st.floats(0, 0.4),
    st.integers(1, 5),
    st.integers(1, 3),
)
@settings(deadline=None, max_examples=150)
def test_everything_arrives_once_and_in_order_whatever_the_channel_does(
    bodies: list[bytes], seed: int, lose: float, repeat: float, swap: float, window: int, transfers: int
) -> None:
    world = World(bodies, window=window, transfers=transfers, seed=seed, lose=lose, repeat=repeat, swap=swap)
    world.run(seconds=20_000)
    assert world.delivered == list(world.bodies.items())
    assert sorted(world.done) == sorted(world.bodies)


@given(bodies, st.lists(st.tuples(st.integers(1, 60), st.booleans()), max_size=4))
@settings(deadline=None)
def test_breaks_in_the_middle_cost_at_most_a_window_each(bodies: list[bytes], breaks: list[tuple[int, bool]]) -> None:
    """A break loses all that is on the way; one side notices first and says so."""
    world = World(bodies)
    world.start()
    for steps, sender_notices in breaks:
        for _ in range(steps):
            world.step()
        for channel in (world.data, world.credits, world.queries):
            channel.queue.clear()
        if sender_notices:
            world.perform(world.outbox.reconnected(world.now))
        else:
            world.answer(world.inbox.states())
    while len(world.outbox) and world.now < 600:
        world.step()
    assert world.delivered == list(world.bodies.items())
    assert world.resent <= 3 * 2 * len(breaks)


@pytest.mark.parametrize("rate", [0.02, 0.2, 5.0])
def test_slow_is_not_lost(rate: float) -> None:
    """One chunk in 50 s: the sender asks, and never sends a chunk twice."""
    world = World([bytes(100), bytes(35)], rate=rate).run(seconds=5000)
    assert [body for _, body in world.delivered] == [bytes(100), bytes(35)]
    assert world.resent == 0


def test_a_lost_chunk_is_sent_again_within_two_round_trips() -> None:
    world = World([bytes(100)], window=4)
    world.start()
    world.data.queue.pop(1)
    while len(world.outbox) and world.now < 60:
        world.step()
    assert world.resent == 4  # the lost one and the three behind it: a window
    assert world.now < 1.0  # no timer had to run out


def test_a_transfer_lost_whole_does_not_hold_up_the_one_behind_it() -> None:
    """Its follower's chunk is turned away until it has come, so asking for the follower alone would never end."""
    world = World([b"a" * 5, b"b" * 5])
    kept, world.data.lose = world.data.lose, 1.0
    world.perform(world.outbox.add("t0", 1, world.now))
    world.data.lose = kept
    world.perform(world.outbox.add("t1", 1, world.now))
    while len(world.outbox) and world.now < 60:
        world.step()
    assert world.done == ["t0", "t1"]
    assert world.now < 1.0
    assert world.sent <= 6


def test_a_stream_has_no_round_trip_gaps() -> None:
    """Eight transfers of one chunk, two begun at once, 0.1 s there and back."""
    world = World([bytes(SIZE)] * 8, window=4).run()
    assert world.now <= 4 * 0.15


def test_the_window_is_shared_by_all_transfers_to_a_peer() -> None:
    outbox = Outbox(window=4, transfers=2)
    sends = outbox.add("a", 3, 0.0) + outbox.add("b", 9, 0.0) + outbox.add("c", 9, 0.0)
    assert [(s.transfer, s.index) for s in sends if isinstance(s, SendChunk)] == [
        ("a", 0),
        ("a", 1),
        ("a", 2),
        ("b", 0),
    ]


def test_a_slow_receiver_closes_the_window_and_opens_it_again() -> None:
    world = World([bytes(400)] * 3, window=3, max_bytes=450)
    world.slow_delivery = 20.0
    world.run()
    assert [len(body) for _, body in world.delivered] == [400] * 3
    assert world.peak <= 450 + 3 * SIZE
    assert world.resent == 0


def test_a_body_greater_than_the_budget_still_arrives() -> None:
    world = World([bytes(900), bytes(900)], max_bytes=50).run()
    assert [len(body) for _, body in world.delivered] == [900, 900]
    assert world.peak <= 900 + 50 + 3 * SIZE


def test_a_receiver_that_forgot_all_gets_it_again() -> None:
    world = World([bytes(100)])
    world.start()
    while not world.inbox.held_bytes > 30:
        world.step()
    world.inbox = Inbox("orchestrator", "dev", window=3, max_bytes=10**6, admit=admit)
    while len(world.outbox) and world.now < 60:
        world.step()
    assert world.delivered == [("t0", bytes(100))]


def test_a_transfer_given_up_unheard_does_not_hold_up_the_next() -> None:
    """Its withdrawal is lost; the next transfer's mark says that nothing is before it any more."""
    world = World([bytes(100), bytes(100)], transfers=2, window=3)
    world.start()
    while not world.inbox.held_bytes > 30:
        world.step()
    world.perform(world.outbox.remove("t0", world.now))
    while len(world.outbox) and world.now < 120:
        world.step()
    assert [name for name, _ in world.delivered] == ["t1"]
    assert world.inbox.held_bytes == 0


def receiver(**options: object) -> Inbox:
    return Inbox("orchestrator", "dev", **{"window": 3, "max_bytes": 100, "admit": admit, **options})


def chunk(index: int, body: bytes = bytes(25), transfer: str = "t", after: str = "", header: bytes = HEADER) -> Chunk:
    frame = unpack(pack_chunk(transfer, after, index, header, memoryview(body), SIZE))
    assert isinstance(frame, Chunk)
    return frame


def test_a_finished_transfer_is_answered_again_and_not_delivered_again() -> None:
    inbox = receiver()
    for index in range(3):
        inbox.chunk(chunk(index), 0, 10)
    assert inbox.take() is not None
    inbox.finish("t")
    for index in range(3):
        moved, replies = inbox.chunk(chunk(index), 0, 10)
        assert not moved
        assert [isinstance(r, Credit) and r.done for r in replies] == [True]
    assert inbox.take() is None


def test_an_unknown_transfer_is_told_to_start_anew() -> None:
    for replies in (receiver().chunk(chunk(2), 0, 10)[1], receiver().state("t"), receiver().mark(Mark("t", "", 1, 3))):
        assert [(r.received, r.done) for r in replies if isinstance(r, Credit)] == [(0, False)]


def test_a_transfer_whose_forerunner_is_unknown_is_not_begun() -> None:
    inbox = receiver()
    assert not inbox.chunk(chunk(0, transfer="b", after="a"), 0, 10)[0]
    assert inbox.chunk(chunk(0, transfer="a"), 0, 10)[0]
    assert inbox.chunk(chunk(0, transfer="b", after="a"), 0, 10)[0]


def test_refusals_are_repeated_and_nothing_is_kept() -> None:
    def refuse(peer: str, header: Header, total: int) -> None:
        raise TransferRefused(f"{total} bytes are too many")

    inbox = receiver(admit=refuse)
    for index in (0, 1, 0):
        replies = inbox.chunk(chunk(index), 0, 10)[1]
        assert [r.why for r in replies if isinstance(r, Refuse)] in (["25 bytes are too many"], [])
    assert inbox.held_bytes == 0


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (chunk(0), chunk(1, bytes(35))),  # another total
        (chunk(0, bytes(11)), Chunk("t", "", 1, 2, 11, 0, memoryview(b""), memoryview(b"too many bytes"))),
        (chunk(0, bytes(20)), Chunk("t", "", 1, 2, 20, 0, memoryview(b""), memoryview(b"few"))),
    ],
)
def test_chunks_that_contradict_each_other_are_refused(first: Chunk, second: Chunk) -> None:
    inbox = receiver()
    inbox.chunk(first, 0, 10)
    replies = inbox.chunk(second, 0, 10)[1]
    assert isinstance(replies[0], Refuse)
    assert "damaged" in replies[0].why
    assert inbox.held_bytes == 0


def test_a_header_of_another_protocol_is_refused() -> None:
    replies = receiver().chunk(chunk(0, header=b"what?"), 0, 10)[1]
    assert isinstance(replies[0], Refuse)


def test_finished_transfers_are_forgotten_in_time() -> None:
    inbox = receiver()
    for n in range(1000):
        inbox.chunk(chunk(0, b"", f"t{n}"), 0, 10)
        assert inbox.take() is not None
        inbox.finish(f"t{n}")
    assert inbox.state("t999")[0] == Credit("dev", "orchestrator", "t999", 0, 0, True)
    assert inbox.state("t0")[0] == Credit("dev", "orchestrator", "t0", 0, 3)


@given(st.lists(st.tuples(st.integers(-1, 12), st.integers(-1, 12), st.integers(0, 5)), max_size=20))
def test_senseless_credits_never_break_the_sender(credits: list[tuple[int, int, int]]) -> None:
    outbox = Outbox(window=3, transfers=1)
    outbox.add("t", 9, 0.0)
    for n, (received, window, seen) in enumerate(credits):
        _, sends = outbox.credit(Credit("d", "o", "t", received, window, seen=seen), float(n))
        assert all(0 <= s.index < 9 for s in sends if isinstance(s, SendChunk))
