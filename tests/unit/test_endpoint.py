"""Two endpoints over a MemoryHub: delivery, refusal, backpressure, bad weather, foreign and hostile messages."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from edgebed.errors import TransferError, TransferRefused
from edgebed.link.allowance import Allowance
from edgebed.link.endpoint import ReceivedTransfer, TransferEndpoint
from edgebed.timeouts import timeout
from edgebed.wire.frames import Mark, pack_mark
from edgebed.wire.messages import (
    Control,
    Credit,
    Header,
    Ping,
    Pong,
    Presence,
    Query,
    Refuse,
    Reply,
    Upload,
    decode_control,
    encode,
)
from edgebed.wire.topics import ORCHESTRATOR, Topics
from tests.memory_link import MemoryHub, MemoryLink, matches

TOPICS = Topics("f1")
UPLOAD = Upload("dev", "task", 0, 1)


@dataclass
class Side:
    """An endpoint and all it reported."""

    name: str
    hub: MemoryHub
    options: dict[str, object] = field(default_factory=dict)
    arrived: list[ReceivedTransfer] = field(default_factory=list)
    heard: list[tuple[str, Control]] = field(default_factory=list)
    progress: list[tuple[str, str]] = field(default_factory=list)

    async def open(self) -> None:
        self.control, self.data = MemoryLink(self.hub), MemoryLink(self.hub)
        self.endpoint = TransferEndpoint(
            self.name,
            TOPICS,
            self.control,
            self.data,
            on_control=lambda peer, message: self.heard.append((peer, message)),
            on_progress=lambda peer, transfer: self.progress.append((peer, transfer)),
            **{"deliver": lambda inbound: self.deliver(inbound), "chunk_bytes": 100, **self.options},
        )
        self.endpoint.start()
        await self.control.open()
        await self.data.open()

    async def deliver(self, inbound: ReceivedTransfer) -> None:
        self.arrived.append(inbound)

    async def close(self) -> None:
        await self.endpoint.close()
        await self.control.close()
        await self.data.close()


@contextlib.asynccontextmanager
async def pair(hub: MemoryHub | None = None, **options: object) -> AsyncIterator[tuple[Side, Side]]:
    """An orchestrator (with the options) and a device."""
    hub = hub or MemoryHub()
    both = Side(ORCHESTRATOR, hub, options), Side("dev", hub)
    async with timeout(30):
        for side in both:
            await side.open()
        yield both
        for side in both:
            await side.close()


async def until(condition: Callable[[], bool]) -> None:
    async with timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


def held(gate: asyncio.Event, arrived: list[ReceivedTransfer]) -> Callable[[ReceivedTransfer], Awaitable[None]]:
    async def deliver(inbound: ReceivedTransfer) -> None:
        await gate.wait()
        arrived.append(inbound)

    return deliver


async def test_a_transfer_arrives_whole_both_ways() -> None:
    body = random.Random(0).randbytes(12345)
    async with pair() as (orchestrator, device):
        sent = await device.endpoint.send(ORCHESTRATOR, UPLOAD, body)
        await orchestrator.endpoint.send("dev", Reply("task", 3), memoryview(body)[:50])
        [up], [down] = orchestrator.arrived, device.arrived
        assert (up.peer, up.header, bytes(up.body)) == ("dev", UPLOAD, body)
        assert (down.peer, down.header, bytes(down.body)) == (ORCHESTRATOR, Reply("task", 3), body[:50])
        assert len(body) < up.bytes == sent.bytes
        assert sent.resent_bytes == 0
        assert sent.first_ns <= up.first_ns <= up.last_ns <= sent.done_ns
        assert {peer for peer, _ in orchestrator.progress} == {"dev"}
        assert len(orchestrator.progress) >= 124  # every chunk is a sign of life


async def test_an_empty_body_and_many_at_once_keep_their_order() -> None:
    async with pair() as (orchestrator, device):
        bodies = [bytes([n]) * (n * 37 % 500) for n in range(40)]
        await asyncio.gather(*[device.endpoint.send(ORCHESTRATOR, UPLOAD, body) for body in bodies])
        assert [bytes(i.body) for i in orchestrator.arrived] == bodies


async def test_done_means_delivered() -> None:
    gate, arrived = asyncio.Event(), list[ReceivedTransfer]()
    async with pair(deliver=held(gate, arrived)) as (orchestrator, device):
        sending = asyncio.create_task(device.endpoint.send(ORCHESTRATOR, UPLOAD, b"x"))
        await until(lambda: bool(orchestrator.progress))
        assert not sending.done()
        gate.set()
        await sending
        assert len(arrived) == 1


async def test_a_slow_receiver_holds_its_sender_back_and_its_memory_down() -> None:
    gate, arrived = asyncio.Event(), list[ReceivedTransfer]()
    options = {"deliver": held(gate, arrived), "max_inbound_bytes": 1000}
    async with pair(**options) as (orchestrator, device):
        sends = [asyncio.create_task(device.endpoint.send(ORCHESTRATOR, UPLOAD, bytes(5000))) for _ in range(4)]
        await until(lambda: len(orchestrator.progress) >= 54)
        for _ in range(200):
            await asyncio.sleep(0)
        assert len(orchestrator.progress) == 54  # the first whole, of the second the window it may start with
        gate.set()
        await asyncio.gather(*sends)
        assert len(arrived) == 4


async def test_refused_early_late_and_by_accident() -> None:
    def admit(peer: str, header: Header, total: int) -> None:
        if total > 100:
            raise TransferRefused(f"{total} bytes from {peer} are too many")

    async def deliver(inbound: ReceivedTransfer) -> None:
        if inbound.body == b"late":
            raise TransferRefused("the task is over")
        if inbound.body == b"bug":
            raise RuntimeError("oh")

    async with pair(admit=admit, deliver=deliver) as (_, device):
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        for body, why in ((bytes(101), "101 bytes from dev"), (b"late", "task is over"), (b"bug", "RuntimeError: oh")):
            with pytest.raises(TransferRefused, match=why):
                await device.endpoint.send(ORCHESTRATOR, UPLOAD, body)
        await device.endpoint.send(ORCHESTRATOR, UPLOAD, b"fine")


async def test_a_cancelled_send_is_dropped_on_both_sides() -> None:
    gate, arrived = asyncio.Event(), list[ReceivedTransfer]()
    async with pair(deliver=held(gate, arrived), max_inbound_bytes=10) as (orchestrator, device):
        first, second, third = (
            asyncio.create_task(device.endpoint.send(ORCHESTRATOR, UPLOAD, bytes(n))) for n in (1, 900, 3)
        )
        await until(lambda: len(orchestrator.progress) >= 4)
        second.cancel()
        gate.set()
        await asyncio.gather(first, third)
        with pytest.raises(asyncio.CancelledError):
            await second
        assert [len(i.body) for i in arrived] == [1, 3]


async def test_forgetting_a_peer_fails_its_sends_and_a_new_start_works() -> None:
    gate, arrived = asyncio.Event(), list[ReceivedTransfer]()
    async with pair(deliver=held(gate, arrived)) as (orchestrator, device):
        sending = asyncio.create_task(orchestrator.endpoint.send("nobody", Reply("t", 0), b"x"))
        await asyncio.sleep(0)
        orchestrator.endpoint.forget("nobody")
        with pytest.raises(TransferError, match="nobody is gone"):
            await sending
        upload = asyncio.create_task(device.endpoint.send(ORCHESTRATOR, UPLOAD, bytes(300)))
        await until(lambda: bool(orchestrator.progress))
        device.endpoint.forget(ORCHESTRATOR)
        orchestrator.endpoint.forget("dev")
        gate.set()
        with pytest.raises(TransferError):
            await upload
        await device.endpoint.send(ORCHESTRATOR, UPLOAD, b"again")
        assert bytes(arrived[-1].body) == b"again"


async def test_a_round_that_was_cut_leaves_nothing_in_the_way_of_the_next() -> None:
    """An upload waits to be delivered, another behind it, when the orchestrator has done with the task. Both are
    refused at once, and what is sent after them arrives without a chunk sent twice. On 0.2.0 it never arrived."""
    gate, arrived = asyncio.Event(), list[ReceivedTransfer]()
    async with pair(deliver=held(gate, arrived)) as (orchestrator, device):
        first = asyncio.create_task(device.endpoint.send(ORCHESTRATOR, UPLOAD, b"first"))
        second = asyncio.create_task(device.endpoint.send(ORCHESTRATOR, UPLOAD, b"second"))
        await until(lambda: len(device.progress) == 2)
        orchestrator.endpoint.forget("dev")
        for old in (first, second):
            with pytest.raises(TransferRefused, match="has ended what this was for"):
                await old
        gate.set()
        sent = await device.endpoint.send(ORCHESTRATOR, UPLOAD, b"third")
        assert sent.resent_bytes == 0
        assert [bytes(i.body) for i in arrived] == [b"third"]


async def test_a_receiver_without_any_memory_holds_nothing_up() -> None:
    """As above, but the receiver starts anew without a word: its first answer to the next upload sets things right."""
    hub = MemoryHub()
    async with pair(hub, deliver=held(asyncio.Event(), [])) as (orchestrator, device):
        first = asyncio.create_task(device.endpoint.send(ORCHESTRATOR, UPLOAD, b"first"))
        await until(lambda: len(device.progress) == 1)
        await orchestrator.close()
        anew = Side(ORCHESTRATOR, hub)
        await anew.open()
        sent = await device.endpoint.send(ORCHESTRATOR, UPLOAD, bytes(50))
        with pytest.raises(TransferRefused, match="forgotten"):
            await first
        assert sent.resent_bytes <= 2 * sent.bytes
        assert [len(i.body) for i in anew.arrived] == [50]
        await anew.close()


async def test_sends_cancelled_together_put_no_more_on_the_wire() -> None:
    gate, arrived = asyncio.Event(), list[ReceivedTransfer]()
    async with pair(deliver=held(gate, arrived)) as (_, device):
        sends = [asyncio.create_task(device.endpoint.send(ORCHESTRATOR, UPLOAD, bytes(n))) for n in range(1, 8)]
        await until(lambda: len(device.progress) == 2)
        for send in reversed(sends):
            send.cancel()
        await asyncio.gather(*sends, return_exceptions=True)
        sent = await asyncio.gather(
            *(device.endpoint.send(ORCHESTRATOR, UPLOAD, bytes(99)) for _ in "ab"), first_free(gate)
        )
        assert [len(i.body) for i in arrived] == [1, 99, 99]
        assert sent[0].resent_bytes == sent[1].resent_bytes == 0


async def first_free(gate: asyncio.Event) -> None:
    gate.set()


async def test_closing_fails_what_is_under_way() -> None:
    async with pair() as (orchestrator, _):
        sending = asyncio.create_task(orchestrator.endpoint.send("nobody", Reply("t", 0), b"x"))
        await asyncio.sleep(0)
        await orchestrator.endpoint.close()
        with pytest.raises(TransferError, match="closed"):
            await sending
        with pytest.raises(TransferError, match="closed"):
            await orchestrator.endpoint.send("dev", Reply("t", 0), b"x")


@pytest.mark.parametrize("seed", range(5))
async def test_bad_weather_changes_nothing_but_the_time(seed: int) -> None:
    hub = MemoryHub(lose=0.05, repeat=0.1, swap=0.1, seed=seed)
    async with pair(hub) as (orchestrator, device):
        bodies = [random.Random(n).randbytes(700) for n in range(3)]
        await asyncio.gather(*[device.endpoint.send(ORCHESTRATOR, UPLOAD, body) for body in bodies])
        assert [bytes(i.body) for i in orchestrator.arrived] == bodies


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("link", ["control", "data"])
async def test_a_dropped_connection_is_resumed(side: int, link: str) -> None:
    async with pair() as both:
        orchestrator, device = both
        sending = asyncio.create_task(device.endpoint.send(ORCHESTRATOR, UPLOAD, bytes(5000)))
        await until(lambda: len(orchestrator.progress) >= 10)
        broken: MemoryLink = getattr(both[side], link)
        broken.drop()
        broken.restore()
        sent = await sending
        assert [len(i.body) for i in orchestrator.arrived] == [5000]
        assert sent.resent_bytes < 3000  # it went on, it did not start anew


async def test_control_messages_reach_the_other_side_and_no_further() -> None:
    async with pair() as (orchestrator, device):
        orchestrator.endpoint.control("dev", Ping(1, 2))
        device.endpoint.control(ORCHESTRATOR, Pong("dev", 1, 2, 3))
        device.control.publish(TOPICS.state("dev"), encode(Presence("dev", "i", True, 1)), retain=True)
        await until(lambda: len(orchestrator.heard) == 2 and len(device.heard) == 1)
        assert device.heard == [(ORCHESTRATOR, Ping(1, 2))]
        assert orchestrator.heard == [("dev", Pong("dev", 1, 2, 3)), ("dev", Presence("dev", "i", True, 1))]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff" * 40,
        encode(Pong("another", 1, 2, 3)),
        encode(Credit("x", "y", "t", 3, 3)),
        encode(Refuse("x", "dev", "t", "no")),
        encode(Query("another", ORCHESTRATOR, "t", 3)),
    ],
)
async def test_false_control_messages_are_counted_and_dropped(payload: bytes) -> None:
    async with pair() as (orchestrator, device):
        device.control.publish(TOPICS.control_from("dev"), payload)
        await until(lambda: orchestrator.endpoint.dropped == 1)
        assert orchestrator.heard == []


async def test_hostile_frames_and_names_are_counted_and_dropped() -> None:
    async with pair() as (orchestrator, device):
        for topic in (TOPICS.data_from("dev"), TOPICS.data_from("-rf"), TOPICS.data_from(ORCHESTRATOR)):
            device.data.publish(topic, b"\x95garbage")
        await until(lambda: orchestrator.endpoint.dropped == 3)
        await device.endpoint.send(ORCHESTRATOR, UPLOAD, b"fine")


async def test_messages_in_invented_names_leave_nothing_behind() -> None:
    told = list[tuple[str, str]]()
    options = {"known": lambda name: name == "dev", "on_dropped": lambda name, why: told.append((name, why))}
    async with pair(**options) as (orchestrator, device):
        for n in range(2000):
            device.control.publish(TOPICS.control_from(f"x{n}"), encode(Pong(f"x{n}", 1, 2, 3)))
            device.data.publish(TOPICS.data_from(f"x{n}"), pack_mark(Mark("t", "", 1, 1, 0)))
        await until(lambda: orchestrator.endpoint.dropped == 4000)
        await device.endpoint.send(ORCHESTRATOR, UPLOAD, b"fine")
        assert list(orchestrator.endpoint._peers) == ["dev"]  # noqa: SLF001
        assert [why for _, why in told] == ["is not a device of this fleet"]
        assert orchestrator.heard == []


@pytest.mark.parametrize("connection", ["control", "data"])
async def test_a_flood_is_dropped_and_named_once(connection: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Allowance.__init__, "__defaults__", (0.0, 50.0))
    told = list[tuple[str, str]]()
    async with pair(on_dropped=lambda name, why: told.append((name, why))) as (orchestrator, device):
        for n in range(1000):
            if connection == "control":
                device.endpoint.control(ORCHESTRATOR, Pong("dev", n, 2, 3))
            else:
                device.data.publish(TOPICS.data_from("dev"), pack_mark(Mark("t", "", n, 1, 0)))
        await until(lambda: orchestrator.endpoint.dropped == 950)
        assert len(orchestrator.heard) == (50 if connection == "control" else 0)
        [(name, why)] = told
        assert name == "dev"
        assert "messages a second" in why


def test_an_allowance_fills_up_again() -> None:
    allowance = Allowance(rate=10.0, burst=5.0)
    assert [allowance.take(1.0) for _ in range(6)] == [True] * 5 + [False]
    assert [allowance.take(1.25) for _ in range(3)] == [True, True, False]
    assert sum(allowance.take(100.0) for _ in range(50)) == 5


async def test_credits_of_another_device_do_not_finish_a_transfer() -> None:
    hub = MemoryHub()
    gate, arrived = asyncio.Event(), list[ReceivedTransfer]()
    async with pair(hub) as (orchestrator, device):
        device.deliver = held(gate, arrived)  # type: ignore[method-assign]
        sending = asyncio.create_task(orchestrator.endpoint.send("dev", Reply("t", 0), b"x"))
        await until(lambda: bool(device.progress))
        [(_, transfer)] = device.progress
        thief = Side("thief", hub)
        await thief.open()
        thief.endpoint.control(ORCHESTRATOR, Credit(ORCHESTRATOR, "dev", transfer, 1, 0, True))
        await until(lambda: orchestrator.endpoint.dropped == 1)
        assert not sending.done()
        gate.set()
        await sending
        await thief.close()


async def test_a_retained_will_is_sent_when_a_link_drops() -> None:
    hub = MemoryHub()
    will = (TOPICS.state("dev"), encode(Presence("dev", "i", False, 1)), True)
    link = MemoryLink(hub, will=will)
    await link.open()
    link.drop()
    seen: list[Control] = []
    late = MemoryLink(hub)
    late.subscribe(TOPICS.state("+"), lambda topic, payload: seen.append(decode_control(payload)))
    await late.open()
    await until(lambda: bool(seen))
    assert seen == [Presence("dev", "i", False, 1)]


@pytest.mark.parametrize(
    ("wanted", "topic", "fits"),
    [
        ("a/+/c", "a/b/c", True),
        ("a/+", "a/b/c", False),
        ("a/#", "a/b/c", True),
        ("a/b", "a/b", True),
        ("+", "a/b", False),
        ("#", "a/b", True),
    ],
)
def test_topic_filters(wanted: str, topic: str, fits: bool) -> None:
    assert matches(wanted, topic) == fits
