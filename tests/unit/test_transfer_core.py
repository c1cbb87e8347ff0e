"""TransferSender and TransferReceiver against each other over a channel that loses, repeats, reorders and breaks, in
simulated time."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edgebed.errors import TransferRefused
from edgebed.link.receiver import FORGOTTEN, PARTIALS, TransferReceiver
from edgebed.link.sender import TRIES, Ask, GiveUp, Send, SendChunk, TransferSender
from edgebed.wire.frames import Chunk, Mark, pack_chunk, unpack
from edgebed.wire.messages import Credit, Header, Refuse
from tests.unit._world import HEADER, SIZE, World, admit

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
@example([bytes(n) for n in (68, 19, 18, 15, 62)], [(7, True)])
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
    outbox = TransferSender(window=4, transfers=2)
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


def test_what_was_credited_and_is_forgotten_is_refused() -> None:
    """It might have been delivered, so it is not sent again."""
    world = World([bytes(100)])
    world.start()
    while not world.inbox.held_bytes > 30:
        world.step()
    world.forget()
    while len(world.outbox) and world.now < 60:
        world.step()
    assert (world.delivered, world.refused) == ([], {"t0": FORGOTTEN})
    assert world.now < 2.0


def test_what_was_forgotten_before_it_was_credited_is_sent_again() -> None:
    world = World([bytes(100)])
    world.start()
    while not world.inbox.held_bytes:
        world.step()
    world.forget()
    world.credits.queue.clear()
    while len(world.outbox) and world.now < 60:
        world.step()
    assert world.delivered == [("t0", bytes(100))]


def test_a_forgotten_receipt_does_not_hold_up_the_next_transfer() -> None:
    """A round is cut while an upload waits at its server half: all its chunks are credited, its receipt never comes.
    The next upload names it as the one before, so it is turned away until the sender asks for that one too."""
    world = World([bytes(5)])
    world.slow_delivery = 1e9
    world.start()
    while world.delivering is None or world.outbox.on_the_way:
        world.step()
    world.forget()
    world.bodies["t1"] = bytes(5)
    world.slow_delivery = 0.0
    world.perform(world.outbox.add("t1", 1, world.now))
    while len(world.outbox) and world.now < 60:
        world.step()
    assert world.done == ["t0", "t1"]
    assert world.refused == {"t0": FORGOTTEN}
    assert world.times == {("t0", 0): 1, ("t1", 0): 2}
    assert world.now < 0.75  # two round trips; no timer had to run out


def test_no_transfer_begins_behind_one_that_may_be_lost() -> None:
    """The receiver would turn it away, and it would be sent twice. The first one's receipt makes room for it; it begins
    once the answer to the second one's mark has told what to send again."""
    outbox = TransferSender(window=3, transfers=2)
    for name, count in (("a", 1), ("b", 2), ("c", 2)):
        outbox.add(name, count, 0.0)
    asked = [send for send in outbox.reconnected(1.0) if isinstance(send, Ask)]
    assert [ask.transfer for ask in asked] == ["a", "b"]
    assert outbox.remove("a", 1.1) == []
    _, sends = outbox.credit(Credit("dev", "orchestrator", "b", 0, 3, seen=asked[1].number), 1.2)
    assert sends == [SendChunk("b", 0, True), SendChunk("b", 1, True), SendChunk("c", 0, False)]


def test_a_lost_mark_of_the_one_before_is_sent_again_with_the_next() -> None:
    """The first transfer is lost whole, then its mark too: the answer to the second one's mark proves it."""
    world = World([b"a" * 5, b"b" * 5])
    world.start()
    world.data.queue.pop(0)
    while not world.asked:
        world.step()
    world.data.queue.pop(0)
    world.queries.queue.pop(0)
    while len(world.outbox) and world.now < 60:
        world.step()
    assert world.done == ["t0", "t1"]
    assert world.times == {("t0", 0): 2, ("t1", 0): 3}
    assert world.now < 1.0


def test_a_chunk_that_is_lost_each_time_ends_its_send() -> None:
    world = World([bytes(5)])
    world.start()
    given_up: list[Send] = []
    for _ in range(TRIES + 5):
        credit = Credit("dev", "orchestrator", "t0", 0, 3)
        asked = world.outbox.credit(credit, world.now)[1]
        assert not asked or isinstance(asked[0], Ask)
        _, sends = world.outbox.credit(Credit("dev", "orchestrator", "t0", 0, 3, seen=asked[0].number), world.now)  # type: ignore[union-attr]
        given_up += [send for send in sends if isinstance(send, GiveUp)]
        if given_up:
            break
        world.perform(sends)
    assert world.sent == TRIES
    assert str(TRIES) in given_up[0].why  # type: ignore[union-attr]


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


def receiver(**options: object) -> TransferReceiver:
    return TransferReceiver("orchestrator", "dev", **{"window": 3, "max_bytes": 100, "admit": admit, **options})


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
    for replies in (
        receiver().chunk(chunk(2), 0, 10)[1],
        receiver().state("t"),
        receiver().mark(Mark("t", "", 1, 3, 0)),
    ):
        assert [(r.received, r.done) for r in replies if isinstance(r, Credit)] == [(0, False)]


def test_a_transfer_whose_forerunner_is_unknown_is_not_begun() -> None:
    inbox = receiver()
    assert not inbox.chunk(chunk(0, transfer="b", after="a"), 0, 10)[0]
    assert inbox.chunk(chunk(0, transfer="a"), 0, 10)[0]
    assert inbox.chunk(chunk(0, transfer="b", after="a"), 0, 10)[0]


def test_a_transfer_that_was_given_up_is_not_begun_by_a_late_chunk() -> None:
    """Its withdrawal goes over the control connection and overtakes its chunks."""
    inbox = receiver()
    inbox.withdraw("t")
    assert isinstance(inbox.chunk(chunk(0), 0, 10)[1][0], Refuse)
    assert inbox.held_bytes == 0


def test_all_that_has_begun_can_be_refused_and_stays_so() -> None:
    inbox = receiver()
    for index in range(3):
        inbox.chunk(chunk(index), 0, 10)
    assert inbox.take() is not None
    inbox.chunk(chunk(0, transfer="b", after="t"), 0, 10)
    replies = inbox.refuse_all("the round is over")
    assert [(r.transfer, r.why) for r in replies if isinstance(r, Refuse)] == [
        ("t", "the round is over"),
        ("b", "the round is over"),
    ]
    assert inbox.held_bytes == 0
    assert isinstance(inbox.finish("t")[0], Refuse)  # its delivery ends later
    assert isinstance(inbox.mark(Mark("b", "t", 1, 3, 1))[0], Refuse)
    assert inbox.chunk(chunk(0, transfer="c", after="b"), 0, 10)[0]


def small(transfer: str, index: int, count: int = 100) -> Chunk:
    return chunk(index, bytes(SIZE * count), transfer)


def test_chunks_beyond_the_grant_are_dropped() -> None:
    """Sixty windows are sent on a budget of ten chunks; the receiver answers, and keeps what it granted."""
    inbox = receiver(window=3, max_bytes=10 * SIZE, max_chunk=SIZE)
    inbox.chunk(small("first", 0), 0, 10)
    for transfer in ("a", "b", "c"):
        for index in range(60):
            inbox.chunk(small(transfer, index), 0, 10)
    assert inbox.held_bytes <= SIZE + 10 * SIZE + 3 * SIZE


def test_only_so_many_transfers_are_open_at_once() -> None:
    inbox = receiver()
    for n in range(PARTIALS):
        assert inbox.chunk(small(f"t{n}", 0), 0, 10)[0]
    for n in range(PARTIALS, 10_000):
        assert isinstance(inbox.chunk(small(f"t{n}", 0), 0, 10)[1][0], Refuse)
    assert inbox.held_bytes <= PARTIALS * SIZE


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (Chunk("t", "", 0, 2, 10**13, 0, memoryview(HEADER), memoryview(bytes(10))), "are not 2 chunks"),
        (Chunk("t", "", 0, 1, 11, 0, memoryview(HEADER), memoryview(bytes(10))), "are not 1 chunks"),
        (Chunk("t", "", 0, 5, 5, 0, memoryview(HEADER), memoryview(b"")), "not 1"),
        (Chunk("t", "", 0, 1, 11, 0, memoryview(HEADER), memoryview(bytes(11))), "too large"),
        (Chunk("t", "", 0, 1, 1, 0, memoryview(bytes(2 << 20)), memoryview(bytes(1))), "too large"),
    ],
)
def test_a_first_chunk_that_contradicts_itself_is_refused_before_it_is_admitted(bad: Chunk, said: str) -> None:
    asked: list[int] = []
    inbox = receiver(max_chunk=SIZE, admit=lambda peer, header, total: asked.append(total))
    (reply,) = inbox.chunk(bad, 0, 10)[1]
    assert isinstance(reply, Refuse)
    assert said in reply.why
    assert inbox.held_bytes == 0
    assert asked in ([], [5])


def test_the_announced_size_is_what_admit_is_asked_for() -> None:
    asked: list[int] = []
    inbox = receiver(admit=lambda peer, header, total: asked.append(total))
    inbox.chunk(chunk(0, bytes(12345)), 0, 10)
    assert asked == [12345]


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
    outbox = TransferSender(window=3, transfers=1)
    outbox.add("t", 9, 0.0)
    for n, (received, window, seen) in enumerate(credits):
        _, sends = outbox.credit(Credit("d", "o", "t", received, window, seen=seen), float(n))
        assert all(0 <= s.index < 9 for s in sends if isinstance(s, SendChunk))
