"""The far end of link probes, against strangers on its network: it keeps few of them, and no token crosses it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from edgebed.errors import CalibrationError
from edgebed.link import link_probe, probe_server
from edgebed.link.probe_server import PORTS, STRANGERS, ProbeServer

PROBE = "ab" * 16
HERE = "127.0.0.1"
OTHER = "127.0.0.2"  # its ports are its own, whatever the other tests use meanwhile


@contextlib.contextmanager
def connections(server: ProbeServer, count: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection((HERE, server.port(HERE)), timeout=20)) for _ in range(count)
        ]


async def measured(server: ProbeServer, token: bytes, count: int = 2) -> None:
    """A device that sends 1000 bytes over `count` connections; raises OSError where it is not taken."""

    def send() -> None:
        with connections(server, count) as near:
            for each in near:
                link_probe.greet(each, token, True, 1000, count)
            link_probe.send(near, 1000)

    await asyncio.to_thread(send)


async def test_a_device_with_the_token_is_measured_and_no_other() -> None:
    async with asyncio.timeout(30), ProbeServer([HERE]) as server:
        outcome = await server.expect(PROBE)
        with pytest.raises(OSError, match=r"closed|refused|reset|pipe"):
            await measured(server, bytes(16))
        await measured(server, link_probe.token_of(PROBE))
        assert (await outcome).bytes <= 1000


async def test_what_one_connection_said_is_worth_nothing_on_another() -> None:
    """The token does not cross the network, and what does is bound to the server's nonce."""
    said: list[bytes] = []

    class Overheard(socket.socket):
        def sendall(self, data: object, flags: int = 0) -> None:
            said.append(bytes(data))  # type: ignore[call-overload]
            super().sendall(data, flags)  # type: ignore[arg-type]

    async with asyncio.timeout(30), ProbeServer([HERE]) as server:
        await server.expect(PROBE)
        with Overheard() as honest, socket.create_connection((HERE, server.port(HERE)), timeout=20) as thief:
            honest.settimeout(20)
            honest.connect((HERE, server.port(HERE)))
            await asyncio.to_thread(link_probe.greet, honest, link_probe.token_of(PROBE), True, 1000, 2)
            assert link_probe.token_of(PROBE) not in said[0]
            thief.recv(link_probe.NONCE_BYTES)
            thief.sendall(said[0])
            assert await asyncio.to_thread(thief.recv, 1) == b""


async def test_strangers_are_few_and_leave_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_server, "GREETING_S", 5.0)
    threads = threading.active_count()
    async with asyncio.timeout(60), ProbeServer([HERE], {HERE}) as server:
        assert server.port(HERE) in PORTS
        with connections(server, 300) as silent:
            greeted = await asyncio.to_thread(lambda: sum(bool(each.recv(1)) for each in silent))
            assert greeted == STRANGERS
            assert threading.active_count() <= threads + STRANGERS + 4
            rest = [each for each in silent if each.fileno() >= 0]
            await asyncio.to_thread(lambda: [drained(each) for each in rest])
            outcome = await server.expect(PROBE)
            await measured(server, link_probe.token_of(PROBE))
            await outcome


def drained(connection: socket.socket) -> None:
    """Read until the server closes."""
    with contextlib.suppress(ConnectionError):
        while connection.recv(64):
            pass


async def test_more_calibrations_than_there_are_ports_are_told() -> None:
    async with contextlib.AsyncExitStack() as stack:
        for _ in PORTS:
            await stack.enter_async_context(ProbeServer([OTHER], {OTHER}))
        with pytest.raises(CalibrationError, match="cannot listen") as told:
            await stack.enter_async_context(ProbeServer([OTHER], {OTHER}))
        assert str(PORTS[0]) in told.value.hint
