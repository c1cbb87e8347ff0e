"""Serves the page until it is told to end: opens the port, prints the address, runs uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import sys
from collections.abc import Callable
from urllib.parse import urlencode

import msgspec
import uvicorn

from edgebed.errors import UsageError
from orchestrator.dashboard.app import DashboardAPI, make_app
from orchestrator.dashboard.auth import Auth
from orchestrator.dashboard.run_list import RunList, Wanted

NICENESS = 19
"""Lowest priority: the devices of a run may share this host."""


class PageAddress(msgspec.Struct, frozen=True):
    """Where to serve. A token is always needed, also on the loopback, which other users of this host reach; one is
    made where none is given."""

    host: str = "127.0.0.1"
    port: int = 0
    token: str = ""


def serve(wanted: Wanted, place: PageAddress, notify: Callable[[str], None], *, until_eof: bool = False) -> None:
    """Serve until SIGINT or SIGTERM; `until_eof`: or until standard input ends, as it does when a run is over.
    `notify`: gets the address once the port is open. Raises UsageError: the port cannot be opened."""
    _stand_back()
    sock = _open(place.host, place.port)
    port = sock.getsockname()[1]
    token = place.token or secrets.token_urlsafe(16)
    notify(address(place.host, port, token))
    asyncio.run(_serve(RunList(wanted), sock, place.host, port, token, until_eof))


def _stand_back() -> None:
    """Use the processor only when no other process needs it."""
    with contextlib.suppress(OSError, AttributeError):
        os.nice(NICENESS)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def address(host: str, port: int, token: str) -> str:
    """The address to open in a browser: on this host, or with its name where the server listens on all addresses."""
    name = socket.gethostname() if host in ("0.0.0.0", "::", "") else f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}/?{urlencode({'token': token})}"


def _open(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        hint = "--port 0 takes a free one; --host must be an address of this host"
        raise UsageError(f"cannot serve on {host}:{port}: {error.strerror or error}", hint=hint) from None


async def _serve(runs: RunList, sock: socket.socket, host: str, port: int, token: str, until_eof: bool) -> None:
    api = DashboardAPI(runs)
    config = uvicorn.Config(
        Auth(make_app(api), host, port, token),
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=2,
    )
    server = _Server(config, api)
    if until_eof:
        asyncio.get_running_loop().run_in_executor(None, _hear, server, api, asyncio.get_running_loop())
    await server.serve(sockets=[sock])


class _Server(uvicorn.Server):
    """Ends the streams of open pages before it ends; uvicorn would wait for them."""

    def __init__(self, config: uvicorn.Config, api: DashboardAPI) -> None:
        super().__init__(config)
        self._api = api

    def end(self) -> None:
        self._api.close()
        self.should_exit = True

    def handle_exit(self, sig: int, frame: object) -> None:
        self._api.close()
        super().handle_exit(sig, frame)  # type: ignore[arg-type]


def _hear(server: _Server, api: DashboardAPI, loop: asyncio.AbstractEventLoop) -> None:
    """Take steps of the experiment from standard input, a line each, until it ends."""
    with contextlib.suppress(RuntimeError):  # the loop has ended already
        for line in sys.stdin.buffer:
            loop.call_soon_threadsafe(api.step, line.decode(errors="replace").strip())
        loop.call_soon_threadsafe(server.end)
