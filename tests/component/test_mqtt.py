"""MqttLink and TransferEndpoint over a real broker: both ways, faults, latency, refusals."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from edgebed.errors import FileError, LinkError
from edgebed.link import mqtt
from edgebed.link.connection import Address
from edgebed.link.endpoint import ReceivedTransfer, TransferEndpoint
from edgebed.link.mqtt import MqttLink
from edgebed.link.read_pauses import ReadPauses
from edgebed.wire.messages import Control, Ping, Pong, Reply, Upload
from edgebed.wire.topics import ORCHESTRATOR, Topics
from orchestrator.broker.open_broker import Broker, open_broker
from tests.broker_address import tcp_address
from tests.component._raw_mqtt import CONNECT, SUBACK, RawClient
from tests.waiting import until

pytestmark = pytest.mark.mosquitto
TOPICS = Topics("f1")
UPLOAD = Upload("dev", "task", 0, 1)


def address_of(broker: Broker) -> Address:
    return tcp_address(broker)


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with open_broker([], kinds=["mosquitto"]) as broker:
        yield broker


class Side:
    def __init__(self, name: str, broker: Broker, **options: object) -> None:
        self.arrived: list[ReceivedTransfer] = []
        self.heard: list[Control] = []
        self.progress = 0
        self.control = MqttLink(address_of(broker), f"{name}-control")
        self.data = MqttLink(address_of(broker), f"{name}-data", keepalive_s=0, paced=name == "dev")
        self.endpoint = TransferEndpoint(
            name,
            TOPICS,
            self.control,
            self.data,
            deliver=self.deliver,
            on_control=lambda peer, message: self.hear(message),
            on_progress=self.count,
            **options,
        )

    def hear(self, message: Control) -> None:
        self.heard.append(message)

    def count(self, peer: str, transfer: str) -> None:
        self.progress += 1

    async def deliver(self, inbound: ReceivedTransfer) -> None:
        self.arrived.append(inbound)


@contextlib.asynccontextmanager
async def pair(broker: Broker, **options: object) -> AsyncIterator[tuple[Side, Side]]:
    both = Side(ORCHESTRATOR, broker, **options), Side("dev", broker, **options)
    for side in both:
        side.endpoint.start()
        await side.control.open()
        await side.data.open()
    async with asyncio.timeout(60):
        yield both
    for side in both:
        await side.endpoint.close()
        await side.control.close()
        await side.data.close()


async def test_five_megabytes_both_ways(broker: Broker) -> None:
    body = random.Random(0).randbytes(5 << 20)
    async with pair(broker) as (orchestrator, device):
        sent, _ = await asyncio.gather(
            device.endpoint.send(ORCHESTRATOR, UPLOAD, body), orchestrator.endpoint.send("dev", Reply("task", 0), body)
        )
        assert bytes(orchestrator.arrived[0].body) == body == bytes(device.arrived[0].body)
        assert sent.resent_bytes == 0


@pytest.mark.parametrize("kind", ["mosquitto", "embedded"])
async def test_a_restarted_broker_costs_a_pause_and_no_byte(kind: str) -> None:
    body = random.Random(1).randbytes(40 << 20)
    async with (
        open_broker([], kinds=[kind]) as broker,
        pair(broker, chunk_bytes=64 << 10) as (orchestrator, device),
    ):
        reconnects = list[int]()
        device.data.on_connect(lambda: reconnects.append(1))
        sending = asyncio.create_task(device.endpoint.send(ORCHESTRATOR, UPLOAD, body))
        await until(lambda: orchestrator.progress >= 20)
        await broker.restart()
        assert not sending.done()
        sent = await sending
        assert reconnects
        assert [bytes(i.body) == body for i in orchestrator.arrived] == [True]
        assert sent.resent_bytes < len(body) / 100  # it went on where it was
        device.endpoint.control(ORCHESTRATOR, Pong("dev", 1, 2, 3))
        await until(lambda: bool(orchestrator.heard))


async def test_control_is_not_stuck_behind_data(broker: Broker) -> None:
    """Pings while 200 MB flow: each answer overtakes what was published before it on the data connection. How
    long a trip takes is measured by a bench on a shaped link."""
    order: list[str] = []

    async with pair(broker, window=32) as (orchestrator, device):

        def answer(message: Control) -> None:
            assert isinstance(message, Ping)
            device.data.publish("behind", b"")
            device.endpoint.control(ORCHESTRATOR, Pong("dev", message.seq, 0, 0))

        device.hear = answer  # type: ignore[method-assign]
        orchestrator.hear = lambda message: order.append("control")  # type: ignore[method-assign]
        orchestrator.data.subscribe("behind", lambda topic, payload: order.append("data"))
        sending = asyncio.create_task(device.endpoint.send(ORCHESTRATOR, UPLOAD, bytes(200 << 20)))
        await until(lambda: orchestrator.progress >= 2)
        first = []
        while not sending.done():
            order.clear()
            orchestrator.endpoint.control("dev", Ping(0, 0))
            await until(lambda: len(order) == 2)
            first.append(order[0])
        await sending
        assert len(first) >= 3
        assert first.count("control") > len(first) / 2, first


async def test_wrong_password_unknown_host_and_closed_port_say_what_to_do(broker: Broker) -> None:
    right = address_of(broker)
    cases = [
        (Address("127.0.0.1", right.port, right.username, "wrong"), "refused us.*", "password"),
        (Address("127.0.0.1", right.port), "refused us.*", "password"),
        (Address("no-such-host.invalid", 1883), "unknown", "host name"),
        (Address("127.0.0.1", 1), "cannot be reached", "runs"),
    ]
    for address, message, hint in cases:
        with pytest.raises(LinkError, match=message) as caught:
            await MqttLink(address, "x").open()
        assert hint in caught.value.hint


async def test_a_port_that_is_no_brokers_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgebed.link.mqtt.CONNECT_S", 0.5)
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(LinkError, match="did not answer"):
        await MqttLink(Address("127.0.0.1", port), "x").open()
    server.close()


async def test_foreign_noise_and_hostile_bytes_change_nothing(broker: Broker) -> None:
    async with pair(broker) as (orchestrator, device):
        noise = MqttLink(address_of(broker), "noise")
        await noise.open()
        noise.publish("edgebed/another/from/dev", b"x")
        noise.publish("something/else", os.urandom(100))
        for topic in (TOPICS.control_from("dev"), TOPICS.data_from("dev"), TOPICS.state("dev"), TOPICS.data_to("dev")):
            noise.publish(topic, os.urandom(1000))
            noise.publish(topic, b"")
        await until(lambda: orchestrator.endpoint.dropped == 6 and device.endpoint.dropped == 2)
        await device.endpoint.send(ORCHESTRATOR, UPLOAD, bytes(3 << 20))
        assert len(orchestrator.arrived) == 1
        assert orchestrator.heard == []
        await noise.close()


async def test_retained_state_and_last_will(broker: Broker) -> None:
    topic, seen = TOPICS.state("dev"), list[bytes]()
    watcher = MqttLink(address_of(broker), "watcher")
    async with relayed(address_of(broker)) as (address, cut):
        device = MqttLink(address, "dev", will=(topic, b"gone", True))
        await device.open()
        device.publish(topic, b"here", retain=True)
        watcher.subscribe(TOPICS.state("+"), lambda topic, payload: seen.append(payload))
        await watcher.open()
        await until(lambda: seen[-1:] == [b"here"])
        cut()
        await until(lambda: seen[-1] == b"gone")
        await device.close()
    seen.clear()
    watcher.reopen()  # who comes later hears what is so now
    await until(lambda: seen == [b"gone"])
    await watcher.close()


@contextlib.asynccontextmanager
async def relayed(broker: Address) -> AsyncIterator[tuple[Address, Callable[[], None]]]:
    """An address that leads to the broker until the second of the two is called, which ends the connection without a
    word to the broker, as the end of a process does."""
    sockets = list[asyncio.StreamWriter]()
    server: asyncio.Server

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await asyncio.open_connection(broker.host, broker.port)
        sockets.extend([writer, outer])
        await asyncio.gather(pump(reader, outer), pump(inner, writer))

    def cut() -> None:
        server.close()
        for each in sockets:
            each.transport.abort()

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    try:
        host, port = server.sockets[0].getsockname()
        yield Address(host, port, broker.username, broker.password), cut
    finally:
        cut()


async def test_callbacks_run_after_each_reconnect_and_subscriptions_hold(broker: Broker) -> None:
    reconnects, seen = list[int](), list[bytes]()
    link, other = MqttLink(address_of(broker), "a"), MqttLink(address_of(broker), "b")
    link.on_connect(lambda: reconnects.append(1))
    link.subscribe("x/+/z", lambda topic, payload: seen.append(payload))
    await link.open()
    await other.open()
    assert not reconnects
    for n in range(2):
        await broker.restart()
        await until(lambda times=n + 1: len(reconnects) == times and link.connected and other.connected)
        other.publish("x/y/z", b"%d" % n)
        await until(lambda want=b"%d" % n: seen[-1:] == [want])
    await link.close()
    await other.close()


async def test_a_broker_whose_address_cannot_be_read_for_a_while_is_found_again(broker: Broker) -> None:
    found, asked = [broker.address], list[int]()

    def find() -> Address:
        asked.append(1)
        if not found:
            raise FileError("a disk in trouble")
        return found[0]

    link = MqttLink(find, "a")
    await link.open()
    found.clear()
    link.reopen()
    await until(lambda: len(asked) > 3)
    found.append(broker.address)
    await until(lambda: link.connected)
    await link.close()


async def test_a_unix_socket_that_takes_no_more_connections_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mqtt, "CONNECT_S", 0.4)
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.socket(socket.AF_UNIX))
        full.bind(str(tmp_path / "s"))
        full.listen(0)
        waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
        waiting.connect(str(tmp_path / "s"))
        with pytest.raises(LinkError, match=r"did not answer|cannot be reached"):
            await MqttLink(Address(str(tmp_path / "s"), 0), "a").open()
        await asyncio.wait_for(asyncio.get_running_loop().shutdown_default_executor(), 5)  # no thread waits


async def test_a_reconnect_that_breaks_half_way_is_not_made_twice() -> None:
    """Two connections of one name would end each other for ever."""
    dialed, reconnects = list[RawClient](), list[int]()

    async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = RawClient(reader, writer)
        dialed.append(client)
        assert (await client.receive())[0] == CONNECT
        client.send(b"\x20\x02\0\0")
        _, subscription = await client.receive()
        if len(dialed) == 2:
            writer.transport.abort()
        client.send(bytes([SUBACK, 3]) + subscription[:2] + b"\0")

    async with await asyncio.start_server(broker, "127.0.0.1", 0) as server:
        link = MqttLink(Address(*server.sockets[0].getsockname()), "x")
        link.subscribe("t", lambda topic, payload: None)
        link.on_connect(lambda: reconnects.append(1))
        await link.open()
        dialed[0].writer.transport.abort()
        await until(lambda: len(reconnects) == 1)
        with pytest.raises(TimeoutError):
            await until(lambda: len(dialed) > 3, 1.0)
        await link.close()


async def test_close_leaves_nothing_behind(broker: Broker) -> None:
    def mine() -> set[str]:
        folder = f"/proc/{os.getpid()}/fd"
        links = {os.path.join(folder, fd) for fd in os.listdir(folder)}
        return {os.readlink(path) for path in links if os.path.lexists(path) and "socket" in os.readlink(path)}

    sockets, tasks = mine(), asyncio.all_tasks()
    link = MqttLink(address_of(broker), "a")
    await link.open()
    link.publish("x", bytes(10 << 20))
    await link.close()
    with pytest.raises(LinkError):
        await MqttLink(Address("127.0.0.1", broker.port, broker.address.username, "wrong"), "b").open()
    assert not link.connected
    assert asyncio.all_tasks() == tasks
    assert mine() <= sockets


async def test_what_was_published_before_close_arrives(broker: Broker) -> None:
    seen = list[int]()
    watcher = MqttLink(address_of(broker), "watcher")
    watcher.subscribe("x", lambda topic, payload: seen.append(len(payload)))
    await watcher.open()
    link = MqttLink(address_of(broker), "a")
    await link.open()
    link.publish("x", bytes(5 << 20))
    link.publish("x", b"bye")
    await link.close()
    await until(lambda: seen == [5 << 20, 3])
    await watcher.close()


async def test_a_failing_handler_does_not_break_the_connection(broker: Broker) -> None:
    failures, seen = list[object](), list[bytes]()

    def handle(topic: str, payload: bytes) -> None:
        seen.append(payload)
        raise RuntimeError("oh")

    asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context["exception"]))
    link = MqttLink(address_of(broker), "a")
    link.subscribe("x", handle)
    await link.open()
    link.publish("x", b"1")
    link.publish("x", b"2")
    await until(lambda: seen == [b"1", b"2"])
    assert len(failures) == 2
    await link.close()


async def test_a_paced_link_knows_what_a_packet_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pacing reads an attribute that paho does not promise: a version without it must not pass unseen."""
    lacking, pause_s = list[int](), ReadPauses.pause_s

    def noted(pacer: ReadPauses, arrived: int, missing: int, now_s: float) -> float:
        lacking.append(missing)
        return pause_s(pacer, arrived, missing, now_s)

    async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(b"\x20\x02\x00\x00")  # connected
        writer.write(b"\x30\xe8\x07\x00\x01x" + bytes(500))  # of a message of 1000 bytes, its topic among them
        await reader.read()

    monkeypatch.setattr(ReadPauses, "pause_s", noted)
    async with await asyncio.start_server(broker, "127.0.0.1", 0) as server:
        link = MqttLink(Address(*server.sockets[0].getsockname()), "x", keepalive_s=0, paced=True)
        await link.open()
        await until(lambda: 1000 - 3 - 500 in lacking)
        await link.close()
