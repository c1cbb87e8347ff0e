"""What the embedded broker does otherwise than amqtt, whose own broker fails most of these tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from amqtt import broker as amqtt

from orchestrator.broker import amqtt_broker
from orchestrator.broker.amqtt_broker import Broker, Reader
from orchestrator.broker.amqtt_server import Users
from tests.broker_address import free_port
from tests.component._raw_mqtt import CONNACK, PUBLISH, RawClient, connect, publish, subscribe

NEEDED = pytest.mark.xfail(strict=True, reason="amqtt 0.12.1 itself; if this passes, the mend is no longer needed")
BOTH = pytest.mark.parametrize(
    "kind", [pytest.param(Broker, id="ours"), pytest.param(amqtt.Broker, id="amqtt", marks=NEEDED)]
)


@pytest.fixture
async def kind() -> type[amqtt.Broker]:
    return Broker


@pytest.fixture
async def port(kind: type[amqtt.Broker]) -> AsyncIterator[int]:
    """The port of a broker in this process."""
    port = free_port()
    plugin = f"{Users.__module__}.{Users.__qualname__}"
    config = {
        "listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{port}"}},
        "plugins": {plugin: {"passwords": {"orchestrator": "p", "u": "p"}}},
    }
    broker = kind(config)
    await broker.start()
    yield port
    await broker.shutdown()


@BOTH
async def test_a_late_subscription_of_an_old_connection_does_not_make_the_new_one_deaf(port: int) -> None:
    async with (
        await RawClient.connect(port, "watcher") as watcher,
        await RawClient.connect(port, "device", will="will") as old,
        await RawClient.connect(port, "device") as new,
    ):
        await watcher.subscribe("will")
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await old.subscribe("to")
        await new.subscribe("to")
        old.writer.transport.abort()
        with contextlib.suppress(TimeoutError):
            await watcher.heard(1.0)  # amqtt tells of the old connection's end only now
        watcher.send(publish("to", b"hello"))
        assert await new.heard(1.0) == b"hello"


@BOTH
async def test_a_client_that_connects_again_leaves_no_second_connection_and_its_will(port: int) -> None:
    async with (
        await RawClient.connect(port, "watcher") as watcher,
        await RawClient.connect(port, "device", will="will") as old,
    ):
        await watcher.subscribe("will")
        async with await RawClient.connect(port, "device", will="will") as new:
            async with asyncio.timeout(1.0):
                assert await old.closed()
            assert await watcher.heard(1.0) == b"gone"
            await new.subscribe("to")
            watcher.send(publish("to", b"hello"))
            assert await new.heard(1.0) == b"hello"


@BOTH
async def test_messages_need_no_acknowledgement_that_could_come_too_late(port: int) -> None:
    """Of a retained message neither."""
    async with await RawClient.connect(port, "a") as sender, await RawClient.connect(port, "b") as receiver:
        sender.send(publish("to/b", b"old", retain=True))
        await sender.ping()
        await receiver.subscribe("to/+", qos=2)
        sender.send(publish("to/b", b"new"))
        kinds = [(await receiver.receive())[0] for _ in range(2)]
        assert sorted(kinds) == [PUBLISH, PUBLISH | 1]


@BOTH
async def test_a_wrong_password_does_not_touch_a_client_of_the_same_name(port: int) -> None:
    async with await RawClient.connect(port, "a") as sender, await RawClient.connect(port, "device") as honest:
        await honest.subscribe("to")
        async with await RawClient.dial(port) as stranger:
            stranger.send(connect("device", password="wrong"))
            assert await stranger.expect(CONNACK) == b"\0\5"
            assert await stranger.closed()
        sender.send(publish("to", b"hello"))
        assert await honest.heard(1.0) == b"hello"


@BOTH
async def test_a_client_that_is_silent_beyond_its_keepalive_is_let_go(port: int) -> None:
    async with (
        await RawClient.connect(port, "watcher") as watcher,
        await RawClient.connect(port, "device", keepalive=1, will="will"),
    ):
        await watcher.subscribe("will")
        assert await watcher.heard(3.0) == b"gone"


async def test_a_connection_that_breaks_at_once_is_noticed(port: int) -> None:
    async with await RawClient.connect(port, "watcher") as watcher, await RawClient.dial(port) as hasty:
        await watcher.subscribe("will")
        hasty.send(connect("device", will="will"), subscribe("to"))
        hasty.writer.write_eof()
        assert await watcher.heard(1.0) == b"gone"


async def test_a_client_that_reads_nothing_does_not_hold_up_its_next_connection(port: int) -> None:
    async with (
        await RawClient.connect(port, "a") as sender,
        await RawClient.connect(port, "device") as stuck,
    ):
        await stuck.subscribe("to")
        stuck.writer.transport.pause_reading()  # type: ignore[attr-defined]
        sender.send(*[publish("to", bytes(1 << 20)) for _ in range(24)])
        await sender.ping()
        async with await RawClient.connect(port, "device") as new:
            await new.subscribe("again")
            sender.send(publish("again", b"hello"))
            assert await new.heard() == b"hello"


async def test_who_says_goodbye_leaves_no_will(port: int) -> None:
    async with await RawClient.connect(port, "watcher") as watcher:
        await watcher.subscribe("will")
        async with await RawClient.connect(port, "device", will="will") as device:
            device.send(b"\xe0\0")
            assert await device.closed()
        watcher.send(publish("will", b"none"))
        assert await watcher.heard() == b"none"


async def test_who_says_nothing_is_let_go(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amqtt_broker, "CONNECT_S", 0.1)
    async with await RawClient.dial(port) as silent:
        assert await silent.closed()


async def test_a_message_beyond_the_largest_ends_the_connection(port: int) -> None:
    async with await RawClient.connect(port, "device") as device:
        device.send(b"\x30\xff\xff\xff\x7f\0\1t", bytes(1000))
        assert await device.closed()


async def test_a_timeout_that_the_kernel_reports_is_the_end_of_a_connection() -> None:
    """amqtt would read again at once, without end."""
    stream = asyncio.StreamReader()
    stream.set_exception(TimeoutError(110, "Connection timed out"))
    with pytest.raises(ConnectionResetError):
        await Reader(stream).read(1)
