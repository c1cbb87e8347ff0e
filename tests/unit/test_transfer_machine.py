"""Every send ends: sender and receiver cores as a state machine over links that lose, repeat, delay, reorder, reconnect
and forget, on a virtual clock. Whatever happened, once it stops happening every send is delivered or refused within
bounded time; no chunk is sent more often than there were faults; memory stays bounded on both sides.

What it found, on 0.2.0 and while it was made, stands as plain tests in test_transfer_core.py and test_port.py."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from edgebed.errors import TransferRefused
from edgebed.link.receiver import FINISHED, PARTIALS
from edgebed.wire.frames import chunk_count
from edgebed.wire.messages import Header
from tests.unit._world import SIZE, Channel, World

WINDOW, TRANSFERS, MAX_BYTES = 3, 2, 4 * SIZE
CALM_S = 60.0
"""Virtual seconds in which every send ends once nothing happens any more: silence is asked about after 10 s at most, or
after a few times the round trip that was measured."""
LONG_S = 1e9

channels = st.sampled_from(["data", "credits", "queries"])
places = st.integers(0, 7)


class Transfers(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World([], window=WINDOW, transfers=TRANSFERS, max_bytes=MAX_BYTES)
        self.world.admit = self.admit
        self.added: list[str] = []
        self.given_up: set[str] = set()
        self.faults = self.forgotten = 0
        self.delayed_s = 0.0
        self.refusing = False

    def admit(self, peer: str, header: Header, total: int) -> None:
        if self.refusing:
            raise TransferRefused("not now")

    def channel(self, name: str) -> Channel:
        found = getattr(self.world, name)
        assert isinstance(found, Channel)
        return found

    # ---- what applications do ----

    @rule(chunks=st.integers(1, 6), rest=st.integers(0, SIZE - 1))
    def send(self, chunks: int, rest: int) -> None:
        name, body = f"t{len(self.added)}", bytes(chunks * SIZE - rest)
        self.added.append(name)
        self.world.bodies[name] = body
        self.world.perform(self.world.outbox.add(name, chunk_count(len(body), SIZE), self.world.now))

    @precondition(lambda self: self.added)
    @rule(place=places)
    def give_up(self, place: int) -> None:
        name = self.added[place % len(self.added)]
        if name in self.world.outbox:
            self.given_up.add(name)
            self.world.give_up(name)

    @rule(slow=st.booleans())
    def deliver(self, slow: bool) -> None:
        """From now on deliveries are held up, or they are not."""
        self.world.slow_delivery = LONG_S if slow else 0.0
        if self.world.delivering is not None and not slow:
            self.world.delivering = (self.world.now, self.world.delivering[1])

    @rule(refusing=st.booleans())
    def refuse(self, refusing: bool) -> None:
        self.refusing = refusing

    @rule()
    def end_the_round(self) -> None:
        """The receiver refuses all that has begun."""
        self.world.delivering = None
        self.world.answer(self.world.inbox.refuse_all("the round is over"))

    # ---- what links and hosts do ----

    @rule(steps=st.integers(1, 30))
    def wait(self, steps: int) -> None:
        for _ in range(steps):
            self.world.step()

    @rule(name=channels, place=places)
    def lose(self, name: str, place: int) -> None:
        queue = self.channel(name).queue
        if queue:
            queue.pop(place % len(queue))
            self.faults += 1

    @rule(name=channels, place=places, to=places)
    def repeat(self, name: str, place: int, to: int) -> None:
        queue = self.channel(name).queue
        if queue:
            queue.insert(to % len(queue), queue[place % len(queue)])
            self.faults += 1

    @rule(name=channels, place=places, to=places)
    def reorder(self, name: str, place: int, to: int) -> None:
        queue = self.channel(name).queue
        if queue:
            item = queue.pop(place % len(queue))
            queue.insert(to % (len(queue) + 1), item)
            self.faults += 1

    @rule(name=channels, seconds=st.floats(0.1, 30.0))
    def delay(self, name: str, seconds: float) -> None:
        """Nothing arrives on this connection for a while."""
        self.delayed_s += seconds
        channel = self.channel(name)
        channel.free_at = self.world.now + seconds
        channel.queue[:] = [(at + seconds, item) for at, item in channel.queue]

    @rule(lost=st.sets(channels), sender=st.booleans(), receiver=st.booleans())
    def reconnect(self, lost: set[str], sender: bool, receiver: bool) -> None:
        for name in lost:
            self.faults += len(self.channel(name).queue)
            self.channel(name).queue.clear()
        if sender:
            self.world.perform(self.world.outbox.reconnected(self.world.now))
        if receiver:
            self.world.answer(self.world.inbox.states())

    @rule()
    def forget(self) -> None:
        self.world.forget()
        self.forgotten += 1
        self.faults += 1

    # ---- what holds ----

    @invariant()
    def no_chunk_goes_out_again_without_cause(self) -> None:
        """A sender that gives up has its window back before the receiver hears of it and frees its memory."""
        assert max(self.world.times.values(), default=0) <= 1 + self.faults + len(self.given_up)

    @invariant()
    def the_sender_keeps_to_its_window(self) -> None:
        assert self.world.outbox.on_the_way <= WINDOW

    @invariant()
    def the_receiver_keeps_little(self) -> None:
        held = self.world.inbox.held
        assert sum(held[1:]) <= MAX_BYTES + WINDOW * SIZE
        assert len(held) <= PARTIALS
        assert len(self.world.inbox._finished) <= FINISHED  # noqa: SLF001

    @invariant()
    def nothing_is_delivered_twice_or_in_disorder(self) -> None:
        names = [name for name, _ in self.world.delivered]
        assert all(bytes(body) == self.world.bodies[name] for name, body in self.world.delivered)
        if not self.forgotten:
            assert len(names) == len(set(names))
            # One that was given up may still arrive whole, behind later ones where the link reorders chunks.
            kept = [name for name in names if name not in self.given_up]
            assert kept == [name for name in self.added if name in kept]

    def teardown(self) -> None:
        """Faults end: so does every send."""
        self.deliver(slow=False)
        end = CALM_S + 8 * self.delayed_s + max(self.world.now, *(channel.free_at for channel in self.all_channels()))
        while len(self.world.outbox) and self.world.now < end:
            self.world.step()
        assert not len(self.world.outbox)
        ended = [*self.world.done, *self.given_up]
        assert sorted(ended) == sorted(self.added)
        delivered = {name for name, _ in self.world.delivered}
        assert set(self.world.done) - set(self.world.refused) <= delivered
        self.no_chunk_goes_out_again_without_cause()

    def all_channels(self) -> list[Channel]:
        return [self.world.data, self.world.credits, self.world.queries]


QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
EXAMPLES = int(os.environ.get("EDGEBED_EXAMPLES", "0"))
"""So many new examples are tried instead of the 400 that are always the same."""


def test_every_send_ends() -> None:
    wanted = settings(
        max_examples=EXAMPLES or 400,
        derandomize=not EXAMPLES,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=QUIET,
    )
    run_state_machine_as_test(Transfers, settings=wanted)
