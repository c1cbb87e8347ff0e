"""A data connection that stands but carries nothing is opened again; a slow one is left alone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from edge_agent.data_watch import watch_data
from edgebed.link.connection import Address
from edgebed.link.endpoint import ReceivedTransfer, TransferEndpoint
from edgebed.link.mqtt import MqttLink
from edgebed.wire.messages import Ping, Reply, Upload
from edgebed.wire.topics import ORCHESTRATOR, Topics
from orchestrator.broker.open_broker import open_broker
from tests.broker_address import tcp_address

TOPICS = Topics("f1")
LIMIT_S = 2.0
PIECE = 1 << 14


class Way:
    """A relay to the broker.

    Attributes:
        dialed: how many connections were made.
        swallow: a direction in which the connections up to a number carry nothing any more, though they stand.
        pause_s: a rest after each piece.
    """

    def __init__(self, broker: Address) -> None:
        self._broker, self.dialed, self.swallow, self.pause_s = broker, 0, ("", 0), 0.0

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.dialed += 1
        inner, outer = await asyncio.open_connection(self._broker.host, self._broker.port)
        with contextlib.suppress(ConnectionError):
            number = self.dialed
            await asyncio.gather(self._pump(reader, outer, "up", number), self._pump(inner, writer, "down", number))

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: str, number: int
    ) -> None:
        while data := await reader.read(PIECE):
            if direction != self.swallow[0] or number > self.swallow[1]:
                writer.write(data)
                await writer.drain()
            await asyncio.sleep(self.pause_s)
        writer.close()


@contextlib.asynccontextmanager
async def watched() -> AsyncIterator[tuple[Way, TransferEndpoint, TransferEndpoint]]:
    """The way of a device's data connection; the orchestrator's endpoint and the device's, which is watched."""
    async with open_broker([], kinds=["embedded"]) as broker:
        address = tcp_address(broker)
        way = Way(address)
        async with await asyncio.start_server(way.relay, "127.0.0.1", 0) as server:
            host, port = server.sockets[0].getsockname()
            through = Address(host, port, address.username, address.password)
            links = [MqttLink(address, f"{name}-control") for name in ("o", "d")]
            links += [MqttLink(address, "o-data"), MqttLink(through, "d-data", keepalive_s=0, paced=True)]
            endpoints = [endpoint(ORCHESTRATOR, links[0], links[2]), endpoint("dev", links[1], links[3])]
            for link in links:
                await link.open()
            tasks = [
                asyncio.create_task(watch_data(endpoints[1], links[3], lambda: LIMIT_S)),
                asyncio.create_task(beat(endpoints[0])),
            ]
            try:
                yield way, endpoints[0], endpoints[1]
            finally:
                for task in tasks:
                    task.cancel()
                for end in endpoints:
                    await end.close()
                for link in links:
                    await link.close()


def endpoint(name: str, control: MqttLink, data: MqttLink) -> TransferEndpoint:
    async def deliver(inbound: ReceivedTransfer) -> None: ...

    made = TransferEndpoint(
        name, TOPICS, control, data, deliver=deliver, on_control=lambda peer, message: None, chunk_bytes=1 << 16
    )
    made.start()
    return made


async def beat(orchestrator: TransferEndpoint) -> None:
    """Control is alive: an orchestrator answers heartbeats."""
    while True:
        orchestrator.control("dev", Ping(0, 0))
        await asyncio.sleep(0.2)


@pytest.mark.parametrize("direction", ["down", "up"])
async def test_a_deaf_data_connection_is_opened_again_and_what_was_under_way_arrives(direction: str) -> None:
    async with watched() as (way, orchestrator, device), asyncio.timeout(30):
        await orchestrator.send("dev", Reply("t", 0), bytes(100_000))
        way.swallow = (direction, way.dialed)
        if direction == "down":
            await orchestrator.send("dev", Reply("t", 1), bytes(100_000))
        else:
            await device.send(ORCHESTRATOR, Upload("dev", "t", 1, 1), bytes(100_000))
        assert way.dialed == 2


async def test_a_slow_data_connection_is_left_alone() -> None:
    """A chunk takes twice the limit."""
    async with watched() as (way, orchestrator, device), asyncio.timeout(60):
        way.pause_s = 1.0
        body = bytes(4 * PIECE)
        await asyncio.gather(
            orchestrator.send("dev", Reply("t", 0), body), device.send(ORCHESTRATOR, Upload("dev", "t", 0, 1), body)
        )
        assert way.dialed == 1
