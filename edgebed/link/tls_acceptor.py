"""Accepts TLS connections, and bounds what those cost whose other end has shown no certificate: the strangers.

asyncio's own server takes any number of connections, and gives each 256 KiB of buffers and 60 s before its first byte.
Here a connection has no buffers before a TLS hello has come, strangers are few and end soon, and an address that opens
many pushes out its own only.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import itertools
import socket
import ssl
import struct
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from typing import Generic, TypeVar, cast

import msgspec

MOST_STRANGERS = 256

AT_ONCE = 64
"""Connections accepted in one go, so that the loop's other work is not kept waiting."""

PAUSE_S = 0.5
"""After an error of accept: no file or memory is left, say. Trying again at once would take the whole CPU."""

HELLO_BYTES = 6
"""Of a record's header and the type of the message in it: as many as tell a hello."""

RESET = struct.pack("ii", 1, 0)
"""For SO_LINGER: what is unsent when a socket is closed does not wait in the kernel for somebody who takes nothing."""

Make = Callable[[], asyncio.Protocol]
Member = TypeVar("Member")


class Bounds(msgspec.Struct, frozen=True):
    """Of strangers."""

    hello_s: float = 5.0  # seconds from accept until a TLS hello has begun
    handshake_s: float = 5.0  # seconds from there until the handshake is done
    stranger_s: float = 20.0  # seconds from accept until a stranger ends, whatever it does
    most: int = MOST_STRANGERS  # how many there may be. One more ends the oldest one of the address that has the most


class TlsAcceptor:
    """Accepts until it is closed. Make it in a running loop.

    Args:
        sock: listens; it is closed with this.
        context: asked for each connection, so its certificate may be renewed in place.
        make: the protocol of a connection, when its handshake is done.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, make: Make, bounds: Bounds | None = None) -> None:
        self.context, self.make, self.bounds = context, make, bounds or Bounds()
        self.loop = asyncio.get_running_loop()
        self.strangers: Crowd[_Stranger] = Crowd()
        self._sock = sock
        self._resuming: asyncio.TimerHandle | None = None
        sock.setblocking(False)
        self._resume()

    def close(self) -> None:
        """Stop to listen. A handshake that is not done ends; other connections stay."""
        if self._resuming is not None:
            self._resuming.cancel()
        if self._sock.fileno() >= 0:
            self.loop.remove_reader(self._sock)
            self._sock.close()
        for stranger in list(self.strangers):
            if not stranger.shook_hands:
                stranger.end()

    def _resume(self) -> None:
        self.loop.add_reader(self._sock, self._accept)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                sock, address = self._sock.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue
            except OSError:
                self.loop.remove_reader(self._sock)
                self._resuming = self.loop.call_later(PAUSE_S, self._resume)
                return
            group = group_of(address[0])
            self.strangers.add(_Stranger(self, sock), group)
            if len(self.strangers) > self.bounds.most:
                self.strangers.next_out().end()


def streams(
    handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]], limit: int = 1 << 16
) -> Make:
    """For `make`: as `asyncio.start_server` handles a connection."""

    def make() -> asyncio.Protocol:
        loop = asyncio.get_running_loop()
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(limit, loop), handle, loop)

    return make


class _Stranger(asyncio.Protocol):
    """A connection from accept on. After the handshake it hands all to a protocol of the acceptor's `make`. Where the
    other end has shown a certificate, it is out of the way from then on."""

    def __init__(self, acceptor: TlsAcceptor, sock: socket.socket) -> None:
        self._acceptor, self._loop, self._sock = acceptor, acceptor.loop, sock
        self._began = self._loop.time()
        self._timer = self._loop.call_later(acceptor.bounds.hello_s, self.end)
        self._handshake: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._inner: asyncio.Protocol | None = None
        self._ended = False
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, HELLO_BYTES)  # a part of a hello must not wake us
        self._loop.add_reader(sock, self._look)

    @property
    def shook_hands(self) -> bool:
        return self._transport is not None

    def end(self) -> None:
        """At once, whatever it waits for. A handshake sees the end of the stream and frees what it holds."""
        self._leave()
        self._ended = True
        if self._handshake is None:
            self._loop.remove_reader(self._sock)
        with contextlib.suppress(OSError):  # the other end was faster
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self._sock.shutdown(socket.SHUT_RDWR)
        if self._handshake is None:
            self._sock.close()
        if self._transport is not None:
            self._transport.abort()

    def _leave(self) -> None:
        self._timer.cancel()
        self._acceptor.strangers.remove(self)

    def _look(self) -> None:
        """Fewer bytes than a hello's: the other end has closed."""
        try:
            start = self._sock.recv(HELLO_BYTES, socket.MSG_PEEK)
        except OSError:
            start = b""
        if not is_hello(start):
            self.end()
            return
        self._loop.remove_reader(self._sock)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        self._timer.cancel()
        self._timer = self._loop.call_at(self._began + self._acceptor.bounds.stranger_s, self.end)
        self._handshake = self._loop.create_task(self._shake_hands())

    async def _shake_hands(self) -> None:
        context, seconds = self._acceptor.context, self._acceptor.bounds.handshake_s
        try:
            await self._loop.connect_accepted_socket(
                lambda: self, self._sock, ssl=context, ssl_handshake_timeout=seconds
            )
        except OSError as error:
            error.__traceback__ = None  # it holds itself and asyncio's buffers, until some garbage collection
        if self._transport is None:
            self._leave()

    # ---- what TLS tells ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._ended:
            self._transport.abort()
            return
        self._inner = self._acceptor.make()
        if transport.get_extra_info("peercert"):
            self._leave()
            transport.set_protocol(self._inner)
        self._inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        if self._inner is not None:
            self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._inner is not None:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return None if self._inner is None else self._inner.eof_received()

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_writing()


class Crowd(Generic[Member]):
    """Who is there, by group, in the order in which they came."""

    def __init__(self) -> None:
        self._groups: dict[bytes, OrderedDict[Member, int]] = {}
        self._group_of: dict[Member, bytes] = {}
        self._came = itertools.count()

    def __len__(self) -> int:
        return len(self._group_of)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._group_of)

    def add(self, member: Member, group: bytes) -> None:
        self._group_of[member] = group
        self._groups.setdefault(group, OrderedDict())[member] = next(self._came)

    def remove(self, member: Member) -> None:
        """Does nothing if it is not there."""
        group = self._group_of.pop(member, None)
        if group is not None:
            members = self._groups[group]
            del members[member]
            if not members:
                del self._groups[group]

    def next_out(self) -> Member:
        """The oldest of the largest group; of groups as large, of that with the oldest. Looks at each group once."""
        largest = max(self._groups.values(), key=lambda members: (len(members), -next(iter(members.values()))))
        return next(iter(largest))


def is_hello(start: bytes) -> bool:
    """Whether a connection that begins so begins with a ClientHello: a record of a handshake, of SSL 3 or TLS."""
    return len(start) >= HELLO_BYTES and start[:2] == b"\x16\x03" and start[5] == 1


def group_of(host: str) -> bytes:
    """What one owner of an address has for sure: the address; of IPv6 the network of 64 bits."""
    address = ipaddress.ip_address(host)
    if isinstance(address, ipaddress.IPv4Address):
        return address.packed
    return address.packed[:8] if address.ipv4_mapped is None else address.ipv4_mapped.packed
