"""Joins a connection that comes in with one that this process makes: each end gets what the other sends."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable

from edgebed.link.tls_acceptor import TlsAcceptor, streams

PIECE = 1 << 16
BUFFER = 1 << 18
"""Bytes in the kernel's buffers of a forwarded connection. What waits here could no longer be called back."""

IP_FREEBIND = 15
"""Option of Linux: listen at an address that no interface has yet. A bridge has none before its first container."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Server = asyncio.Server | TlsAcceptor
Connect = Callable[[], Awaitable[Streams]]


def listener(address: str, port: int) -> socket.socket:
    """A socket that listens, also at an address that comes later. Raises OSError."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.IPPROTO_IP, IP_FREEBIND, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        made.bind((address, port))
        made.listen(256)
    except OSError:
        made.close()
        raise
    return made


async def serve(
    where: socket.socket, connect: Connect, context: ssl.SSLContext | None = None, only: str = ""
) -> Server:
    """Join every connection that comes in with a new one of `connect`.

    Args:
        context: TLS for those that come in; None: none.
        only: the common name that a client's certificate must have.
    """

    async def joined(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            if not only or name_of(writer) == only:
                await _join((reader, writer), await connect())
        await close(writer)

    if context is not None:
        return TlsAcceptor(where, context, streams(joined))
    return await asyncio.start_server(joined, sock=where)


async def _join(one: Streams, other: Streams) -> None:
    for _, writer in (one, other):
        with contextlib.suppress(OSError):  # a Unix socket has no such option
            writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    ways = [asyncio.create_task(_copy(one[0], other[1])), asyncio.create_task(_copy(other[0], one[1]))]
    try:
        await asyncio.gather(*ways)
    finally:
        for way in ways:
            way.cancel()
        await close(other[1])


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until the reader's end. Then the other end is told, if it can be (TLS has no half-closed connections)."""
    while data := await reader.read(PIECE):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
    else:
        writer.close()


def name_of(writer: asyncio.StreamWriter) -> str:
    """Common name of the certificate that the other end has shown."""
    shown = writer.get_extra_info("peercert") or {}
    fields = {key: value for part in shown.get("subject", ()) for key, value in part}
    return str(fields.get("commonName", ""))


async def close(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, asyncio.CancelledError):
        writer.close()
        await writer.wait_closed()
