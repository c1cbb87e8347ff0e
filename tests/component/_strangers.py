"""Connections of somebody without a certificate."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Sequence

HOST = "127.0.0.1"
RESET = struct.pack("ii", 1, 0)
"""For SO_LINGER: the ports of so many connections are free again at once, for other tests."""


@contextlib.asynccontextmanager
async def strangers(port: int, count: int, address: str = HOST, host: str = HOST) -> AsyncIterator[list[socket.socket]]:
    """Connections from this address to the port of the host, which send nothing."""
    with contextlib.ExitStack() as stack:
        made = await asyncio.to_thread(lambda: [_connect((host, port), address) for _ in range(count)])
        yield [stack.enter_context(each) for each in made]


def _connect(where: tuple[str, int], address: str) -> socket.socket:
    made = socket.create_connection(where, timeout=10, source_address=(address, 0))
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    return made


def are_open(socks: Sequence[socket.socket]) -> int:
    """How many of them the other end has not closed."""
    return sum(map(_is_open, socks))


def _is_open(sock: socket.socket) -> bool:
    try:
        return sock.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
