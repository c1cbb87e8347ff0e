"""uvicorn with TLS, as the boards service needs it: it tells who showed a certificate, and bounds who showed none."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import ssl
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

PEER = "peer"
"""Key of a request's state: the serial number of the certificate that was shown, or None."""

MOST_STRANGERS = 256
"""Connections without a certificate. One more ends the oldest: so nobody can hold them all."""

STRANGER_S = 20.0
"""A connection without a certificate ends after so long, whatever it does."""

HEADER_BYTES = 16 << 10
KEEP_ALIVE_S = 5


class BoardProtocol(H11Protocol):
    """One connection."""

    strangers: OrderedDict[BoardProtocol, asyncio.TimerHandle] = OrderedDict()  # noqa: RUF012 -- of the process

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        shown: dict[str, Any] = transport.get_extra_info("peercert") or {}
        serial = shown.get("serialNumber")
        self.app_state = {**self.app_state, PEER: None if serial is None else int(serial, 16)}
        if serial is not None:
            return
        self.strangers[self] = asyncio.get_running_loop().call_later(STRANGER_S, transport.abort)
        if len(self.strangers) > MOST_STRANGERS:
            next(iter(self.strangers)).turn_away()

    def connection_lost(self, exc: Exception | None) -> None:
        if (timer := self.strangers.pop(self, None)) is not None:
            timer.cancel()
        super().connection_lost(exc)

    def turn_away(self) -> None:
        """End the connection at once."""
        self.strangers.pop(self).cancel()
        self.transport.abort()


class HttpsServer(uvicorn.Server):
    """uvicorn without signal handlers: its owner ends it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_server(app: ASGIApp, context: ssl.SSLContext) -> HttpsServer:
    config = uvicorn.Config(
        app,
        http=BoardProtocol,
        ws="none",
        lifespan="off",
        log_level="critical",
        access_log=False,
        server_header=False,
        ssl_context_factory=lambda config, make: context,
        h11_max_incomplete_event_size=HEADER_BYTES,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=2,
    )
    return HttpsServer(config)


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


def allow_connections() -> None:
    """As many open files as this user may have: connections that are never completed must not use up the usual 1024."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
