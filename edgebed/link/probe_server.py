"""The far end of link probes, in the orchestrator or on a node of a Swarm. It listens on the addresses that devices
reach, sends or receives, and measures the time. Each probe has its own thread, so that measurements do not wait for the
event loop."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import threading
import time
from collections.abc import Collection, Iterable, Sequence

import msgspec

from edgebed.errors import CalibrationError, WireError
from edgebed.link import link_probe

PORTS = range(7444, 7448)
"""Where other hosts reach a probe server: the first of these ports that is free."""

STRANGERS, DEVICES = 64, 4096
"""Connections that have not shown yet to which probe they belong: of an address that other hosts reach, and of one that
only devices of this host reach."""

GREETING_S = 20.0
"""Seconds in which a connection must show it."""


class Expected:
    """A probe that was announced, with its connections so far and the future of its outcome."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop, self.sockets = loop, list[socket.socket]()
        self.outcome: asyncio.Future[Received] = loop.create_future()


class Received(msgspec.Struct, frozen=True):
    """What the server received: seconds from first to last arrival, and bytes after the first. Zeros if it sent."""

    wall_s: float
    bytes: int


class ProbeServer:
    """Use as an async context manager.

    Args:
        addresses: the addresses of this host on which to listen.
        outside: those of them that other hosts reach.
    """

    def __init__(self, addresses: Iterable[str], outside: Collection[str] = ()) -> None:
        self._addresses, self._outside = sorted(set(addresses)), outside
        self._listeners: dict[str, socket.socket] = {}
        self._expected: dict[bytes, Expected] = {}
        self._lock = threading.Lock()

    async def __aenter__(self) -> ProbeServer:
        for address in self._addresses:
            try:
                listener = _listen(address, PORTS if address in self._outside else (0,))
            except OSError as error:
                await self.__aexit__()
                outside = f"end the calibrations that use the ports {PORTS[0]} to {PORTS[-1]}"
                raise CalibrationError(
                    f"cannot listen on {address}: {error.strerror}",
                    hint=outside if address in self._outside else "the fleet's networks are gone: start it again",
                ) from None
            self._listeners[address] = listener
            room = threading.Semaphore(STRANGERS if address in self._outside else DEVICES)
            threading.Thread(target=self._accept, args=(listener, room), name="edgebed-peer", daemon=True).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for listener in self._listeners.values():
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept()
            listener.close()

    def port(self, address: str) -> int:
        return int(self._listeners[address].getsockname()[1])

    async def expect(self, probe_id: str) -> asyncio.Future[Received]:
        """Announce a probe. The future holds what was received, or the error. Connections of unannounced probes are
        refused."""
        entry = Expected(asyncio.get_running_loop())
        with self._lock:
            self._expected[link_probe.token_of(probe_id)] = entry
        return entry.outcome

    async def forget(self, probe_id: str) -> None:
        with self._lock:
            entry = self._expected.pop(link_probe.token_of(probe_id), None)
        for connection in entry.sockets if entry else ():
            connection.close()

    def _accept(self, listener: socket.socket, room: threading.Semaphore) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except ConnectionAbortedError:  # of one connection: the others must still be heard
                continue
            except OSError:
                return
            if not room.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection, room), daemon=True).start()

    def _serve(self, connection: socket.socket, room: threading.Semaphore) -> None:
        try:
            ready = self._greet(connection)
        finally:
            room.release()
        if ready is not None:
            _settle(*ready)

    def _greet(self, connection: socket.socket) -> tuple[Expected, link_probe.Role] | None:
        """Read which probe a connection belongs to. Returns the probe whose last connection it is, which starts the
        measurement."""
        nonce = secrets.token_bytes(link_probe.NONCE_BYTES)
        try:
            said = _greeting(connection, nonce)
            role = link_probe.Role.unpack(said)
        except (OSError, WireError):
            connection.close()
            return None
        with self._lock:
            entry = next((each for token, each in self._expected.items() if role.shows(token, nonce)), None)
            if entry is not None and len(entry.sockets) < role.connections:
                entry.sockets.append(connection)
                return (entry, role) if len(entry.sockets) == role.connections else None
        connection.close()
        return None


def _listen(address: str, ports: Sequence[int]) -> socket.socket:
    """On the first of the ports that is free. Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for port in ports:
        with contextlib.suppress(OSError) if port != ports[-1] else contextlib.nullcontext():
            return socket.create_server((address, port), family=family, backlog=256)
    raise AssertionError("there is a last port")


def _greeting(connection: socket.socket, nonce: bytes) -> bytes:
    """What the other end says, within GREETING_S."""
    deadline, said = time.monotonic() + GREETING_S, b""
    connection.settimeout(GREETING_S)
    connection.sendall(nonce)
    while len(said) < link_probe.Role.SIZE:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        more = connection.recv(link_probe.Role.SIZE - len(said))
        if not more:
            break
        said += more
    connection.settimeout(link_probe.PATIENCE_S)
    return said


def _settle(entry: Expected, role: link_probe.Role) -> None:
    try:
        if role.device_sends:
            outcome: Received | Exception = Received(*link_probe.receive(entry.sockets, role.size))
        else:
            link_probe.send(entry.sockets, role.size)
            outcome = Received(0.0, 0)
    except OSError as error:
        outcome = CalibrationError(f"a link probe broke off: {error}", hint="is the device still there? Try again")
    for connection in entry.sockets:
        connection.close()
    with contextlib.suppress(RuntimeError):  # the loop has ended
        entry.loop.call_soon_threadsafe(_resolve, entry.outcome, outcome)


def _resolve(future: asyncio.Future[Received], outcome: Received | Exception) -> None:
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
