"""The acceptor, with an echo behind it and short times: who is ended when, and that nothing is left of him."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import errno
import gc
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from edgebed.link.tls import client_context, with_pem
from edgebed.link.tls_acceptor import Bounds, TlsAcceptor, streams
from orchestrator.boards.authority import Authority
from tests.component._strangers import HOST, are_open, strangers
from tests.waiting import until

MOST = 8
BOUNDS = Bounds(hello_s=0.3, handshake_s=0.3, stranger_s=1.0, most=MOST)
HEADER = bytes.fromhex("160301020001")


class Echo:
    """Attributes:
    greeted: connections that got a protocol.
    said: what asyncio told the loop's handler of errors.
    """

    def __init__(self, folder: Path, bounds: Bounds) -> None:
        ca, now = Authority(folder), dt.datetime.now(dt.UTC)
        key, certificate = ca.server_pair([HOST], now)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.verify_mode = ssl.CERT_OPTIONAL
        with_pem(self.context, ca.pem.decode(), certificate.decode(), key.decode())
        self.stranger, self.known = client_context(ca.pem.decode()), client_context(ca.pem.decode())
        key, certificate = ca.client_pair("known", now)
        (folder / "known.pem").write_bytes(key + certificate)
        self.known.load_cert_chain(folder / "known.pem")
        self.greeted, self.said = 0, list[dict[str, object]]()
        self.sock: socket.socket = socket.create_server((HOST, 0), backlog=512)
        self.port = self.sock.getsockname()[1]
        self.acceptor = TlsAcceptor(self.sock, self.context, streams(self._echo), bounds)

    async def _echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.greeted += 1
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def connect(
        self, context: ssl.SSLContext, address: str = HOST
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(HOST, self.port, ssl=context, local_addr=(address, 0))


@contextlib.asynccontextmanager
async def serving(folder: Path, bounds: Bounds) -> AsyncIterator[Echo]:
    made = Echo(folder, bounds)
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: made.said.append(context))
    yield made
    made.acceptor.close()
    assert made.said == []


@pytest.fixture
async def echo(tmp_path: Path) -> AsyncIterator[Echo]:
    async with serving(tmp_path, BOUNDS) as made:
        yield made


@pytest.fixture
async def patient(tmp_path: Path) -> AsyncIterator[Echo]:
    """With the times that everybody has: what ends within 3 s was not ended by them."""
    async with serving(tmp_path, Bounds(most=MOST)) as made:
        yield made


async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes = b"x") -> bool:
    try:
        async with asyncio.timeout(5):
            writer.write(data)
            return await reader.readexactly(len(data)) == data
    except (OSError, asyncio.IncompleteReadError):
        return False


async def test_who_shows_a_certificate_stays_and_is_not_counted(echo: Echo) -> None:
    known = [await echo.connect(echo.known) for _ in range(2 * MOST)]
    await until(lambda: len(echo.acceptor.strangers) == 0, 0.9)
    async with strangers(echo.port, 3 * MOST) as silent:
        await until(lambda: are_open(silent) == 0, 5)
    reader, writer = await echo.connect(echo.stranger)  # later than they
    await until(lambda: reader.at_eof() or reader.exception() is not None, 5)
    assert all([await answers(*each, data=bytes(1 << 20)) for each in known])
    for _, each in [*known, (reader, writer)]:
        each.close()


async def test_a_stranger_ends_in_time_whatever_it_does(echo: Echo) -> None:
    reader, writer = await echo.connect(echo.stranger)
    begin = time.monotonic()
    while await answers(reader, writer):
        pass
    assert 0.7 < time.monotonic() - begin < 3
    writer.close()


async def test_a_stranger_who_leaves_is_counted_no_more(patient: Echo) -> None:
    _, writer = await patient.connect(patient.stranger)
    assert len(patient.acceptor.strangers) == 1
    writer.close()
    await until(lambda: len(patient.acceptor.strangers) == 0, 3)


async def test_the_address_with_the_most_loses_its_oldest_in_every_state(patient: Echo) -> None:
    victim = await patient.connect(patient.stranger, "127.0.0.3")
    done = await patient.connect(patient.stranger)
    async with strangers(patient.port, 2) as shaking:
        for sock in shaking:
            sock.send(HEADER)
        async with strangers(patient.port, MOST) as silent:
            await until(lambda: are_open(shaking) == 0, 3)
            assert not await answers(*done)
            assert are_open(silent) == MOST - 1
            assert await answers(*victim)
    for _, writer in (victim, done):
        writer.close()


@pytest.mark.parametrize("length", [0, 1, 5, 6])
async def test_a_hello_that_does_not_come_is_waited_for_without_work(echo: Echo, length: int) -> None:
    begin, used = time.monotonic(), time.process_time()
    async with strangers(echo.port, 4) as each:
        for sock in each:
            sock.send(HEADER[:length])
        await until(lambda: are_open(each) == 0, 5)
    assert 0.25 < time.monotonic() - begin < 3
    assert time.process_time() - used < 0.15


async def test_a_hello_in_pieces_is_a_hello(echo: Echo) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = echo.stranger.wrap_bio(incoming, outgoing, server_hostname=HOST)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    async with strangers(echo.port, 1) as (sock,):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        hello = outgoing.read()
        for piece in (hello[:1], hello[1:5], hello[5:6], hello[6:40], hello[40:]):
            sock.send(piece)
            await asyncio.sleep(0.01)
        async with asyncio.timeout(2):
            assert (await asyncio.get_running_loop().sock_recv(sock, 6))[:1] == b"\x16"


async def test_who_is_ended_just_before_his_handshake_is_done_gets_no_protocol(patient: Echo) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client, loop = patient.stranger.wrap_bio(incoming, outgoing, server_hostname=HOST), asyncio.get_running_loop()
    async with strangers(patient.port, 1) as (sock,):
        for _ in range(20):
            with contextlib.suppress(ssl.SSLWantReadError):
                client.do_handshake()
                break
            sock.send(outgoing.read())
            incoming.write(await loop.sock_recv(sock, 1 << 14))
        sock.send(outgoing.read())  # the client is done; the service is when it has read this
        patient.acceptor.strangers.next_out().end()
        await until(lambda: are_open([sock]) == 0, 3)
    await until(lambda: buffers() == 0, 2)
    assert patient.greeted == 0


async def test_nothing_is_left_of_those_who_were_ended(echo: Echo) -> None:
    """No file, and no buffer that waits for a garbage collection."""
    files = len(os.listdir("/proc/self/fd"))
    gc.collect()
    gc.disable()
    try:
        for sent in (b"", HEADER, HEADER + bytes(600)):
            async with strangers(echo.port, 5 * MOST) as each:
                for sock in each:
                    with contextlib.suppress(OSError):
                        sock.send(sent)
                await until(lambda each=each: are_open(each) == 0, 5)  # type: ignore[misc]
        await until(lambda: len(os.listdir("/proc/self/fd")) <= files, 2)
        await until(lambda: buffers() == 0, 2)
    finally:
        gc.enable()
    assert len(echo.acceptor.strangers) == 0


def buffers() -> int:
    """TLS connections of asyncio that are still in memory."""
    return sum(type(each).__name__ == "SSLProtocol" for each in gc.get_objects())


async def test_an_error_of_accept_is_waited_out(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[int]()

    def accept(self: socket.socket) -> None:
        calls.append(1)
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as broken:
        broken.setattr(socket.socket, "accept", accept)
        opening = asyncio.create_task(echo.connect(echo.known))
        await until(lambda: bool(calls))
        for _ in range(20):  # the connection still waits, so accept would be called in each step of the loop
            await asyncio.sleep(0)
    assert len(calls) == 1
    async with asyncio.timeout(5):
        _, writer = await opening
    writer.close()


async def test_closing_ends_what_is_not_done_and_leaves_the_rest(patient: Echo) -> None:
    kept = await patient.connect(patient.stranger)
    async with strangers(patient.port, 4) as each:
        for sock in each[:2]:
            sock.send(HEADER)
        await until(lambda: len(patient.acceptor.strangers) == 5, 3)
        patient.acceptor.close()
        patient.acceptor.close()
        await until(lambda: are_open(each) == 0, 3)
    with pytest.raises(ConnectionRefusedError):
        await patient.connect(patient.known)
    assert await answers(*kept)
    kept[1].close()
