"""uvicorn with TLS, as the boards service needs it: it tells who showed a certificate, and bounds who showed none."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from edgebed.link.tls_acceptor import TlsAcceptor

PEER = "peer"
"""Key of a request's state: the serial number of the certificate that was shown, or None."""

HEADER_BYTES = 16 << 10
KEEP_ALIVE_S = 5


REQUEST_S = 30.0
"""A connection on which no request is being answered ends after so long at most."""

MOST_OF_ONE = 8
"""Connections that show the same certificate. One more ends the oldest."""


class Members:
    """The connections that have shown a certificate, by its serial number."""

    def __init__(self) -> None:
        self._open: dict[int, list[asyncio.Transport]] = {}

    def add(self, serial: int, transport: asyncio.Transport) -> None:
        own = self._open.setdefault(serial, [])
        own.append(transport)
        if len(own) > MOST_OF_ONE:
            own[0].abort()

    def remove(self, serial: int, transport: asyncio.Transport) -> None:
        own = self._open[serial]
        own.remove(transport)
        if not own:
            del self._open[serial]

    def close(self, serials: Iterable[int]) -> None:
        """End the connections that have shown these certificates, also in the middle of an answer."""
        for serial in serials:
            for transport in self._open.get(serial, ()):
                transport.abort()


class BoardProtocol(H11Protocol):
    """One connection."""

    members: Members

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        shown: dict[str, Any] = transport.get_extra_info("peercert") or {}
        serial = shown.get("serialNumber")
        self._peer = None if serial is None else int(serial, 16)
        self.app_state = {**self.app_state, PEER: self._peer}
        if self._peer is not None:
            self.members.add(self._peer, transport)
        self._look_in_time(transport)

    def _look_in_time(self, transport: asyncio.Transport) -> None:
        self._timer = self.loop.call_later(REQUEST_S, self._look, transport)

    def _look(self, transport: asyncio.Transport) -> None:
        if self.cycle is None or self.cycle.response_complete:
            transport.abort()
        else:
            self._look_in_time(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """uvicorn lets its timer run on where the other end has reset the connection: it would keep 0.7 MiB for 5 s."""
        if self._peer is not None:
            self.members.remove(self._peer, self.transport)
        self._timer.cancel()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()


class HttpsServer(uvicorn.Server):
    """uvicorn with an acceptor of ours in place of its listeners, and without signal handlers: its owner ends it."""

    def __init__(self, config: uvicorn.Config, context: ssl.SSLContext, members: Members) -> None:
        super().__init__(config)
        self._context, self._members = context, members
        self._acceptors: list[TlsAcceptor] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        self._acceptors = [TlsAcceptor(sock, self._context, self._protocol) for sock in sockets or []]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for acceptor in self._acceptors:
            acceptor.close()
        await super().shutdown(sockets)

    def _protocol(self) -> asyncio.Protocol:
        loop = asyncio.get_running_loop()
        made = BoardProtocol(self.config, self.server_state, self.lifespan.state, loop)
        made.members = self._members
        return made

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_server(app: ASGIApp, context: ssl.SSLContext, members: Members) -> HttpsServer:
    config = uvicorn.Config(
        app,
        http=BoardProtocol,
        ws="none",
        lifespan="off",
        log_level="critical",
        access_log=False,
        server_header=False,
        h11_max_incomplete_event_size=HEADER_BYTES,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=2,
    )
    return HttpsServer(config, context, members)


def server_context(ca: str, certificate: Path, key: Path) -> ssl.SSLContext:
    """A board may show its certificate; one of another CA ends the connection. Whether it is revoked is for the
    application to see."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    context.load_verify_locations(cadata=ca)
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


def listen(address: str, port: int) -> socket.socket:
    """Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    return socket.create_server((address, port), family=family, backlog=512, dualstack_ipv6=both)
