"""A few MQTT 3.1.1 packets by hand, for clients that behave as no library lets them."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

CONNECT, CONNACK, PUBLISH, SUBACK, PINGRESP = 0x10, 0x20, 0x30, 0x90, 0xD0


class RawClient:
    """One connection. Nothing is answered or repeated by itself."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def dial(cls, port: int) -> Self:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    @classmethod
    async def connect(cls, port: int, client_id: str, **options: object) -> Self:
        """A connection that the broker has accepted."""
        client = await cls.dial(port)
        client.send(connect(client_id, **options))  # type: ignore[arg-type]
        assert await client.expect(CONNACK) == b"\0\0"
        return client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.writer.transport.abort()

    def send(self, *packets: bytes) -> None:
        self.writer.write(b"".join(packets))

    async def subscribe(self, topic: str, qos: int = 2) -> int:
        """Returns the granted QoS, 0x80 if refused."""
        self.send(subscribe(topic, qos))
        return (await self.expect(SUBACK))[-1]

    async def ping(self) -> None:
        """Returns when the broker has read all that was sent."""
        self.send(b"\xc0\0")
        await self.expect(PINGRESP)

    async def heard(self, seconds: float = 5.0) -> bytes:
        """The payload of the next message."""
        async with asyncio.timeout(seconds):
            body = await self.expect(PUBLISH)
        return body[2 + int.from_bytes(body[:2]) :]

    async def expect(self, kind: int) -> bytes:
        """The body of the next packet of a kind; those of other kinds are passed over."""
        while True:
            first, body = await self.receive()
            if first & 0xF0 == kind:
                return body

    async def receive(self) -> tuple[int, bytes]:
        """First byte and body of the next packet. Raises IncompleteReadError or ConnectionError at the end."""
        async with asyncio.timeout(10):
            first = (await self.reader.readexactly(1))[0]
            length, shift = 0, 0
            while True:
                byte = (await self.reader.readexactly(1))[0]
                length |= (byte & 0x7F) << shift
                shift += 7
                if not byte & 0x80:
                    return first, await self.reader.readexactly(length)

    async def closed(self) -> bool:
        """Whether the broker has closed the connection; waits for it."""
        try:
            while True:
                await self.receive()
        except (asyncio.IncompleteReadError, ConnectionError):
            return True


def connect(
    client_id: str,
    *,
    user: str = "orchestrator",
    password: str = "p",
    keepalive: int = 0,
    will: str = "",
    clean: bool = True,
) -> bytes:
    """CONNECT; `will`: the topic on which "gone" is published when the connection breaks."""
    flags = 0xC0 | (0x04 if will else 0) | (0x02 if clean else 0)
    body = text("MQTT") + bytes([4, flags]) + keepalive.to_bytes(2) + text(client_id)
    body += text(will) + text("gone") if will else b""
    return packet(CONNECT, body + text(user) + text(password))


def publish(topic: str, payload: bytes, *, retain: bool = False) -> bytes:
    return packet(PUBLISH | retain, text(topic) + payload)


def subscribe(topic: str, qos: int = 2) -> bytes:
    return packet(0x82, b"\0\1" + text(topic) + bytes([qos]))


def text(value: str) -> bytes:
    return len(value.encode()).to_bytes(2) + value.encode()


def packet(first: int, body: bytes) -> bytes:
    length, rest = b"", len(body)
    while True:
        rest, low = rest >> 7, rest & 0x7F
        length += bytes([low | (0x80 if rest else 0)])
        if not rest:
            return bytes([first]) + length + body
