"""The far end of link probes, in the orchestrator or on a node of a Swarm. It listens on the addresses that devices
reach, sends or receives, and measures the time. Each probe has its own thread, so that measurements do not wait for the
event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterable

import msgspec

from edgebed.errors import CalibrationError, WireError
from edgebed.link import link_probe


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
    """

    def __init__(self, addresses: Iterable[str]) -> None:
        self._addresses = sorted(set(addresses))
        self._listeners: dict[str, socket.socket] = {}
        self._expected: dict[bytes, Expected] = {}
        self._lock = threading.Lock()

    async def __aenter__(self) -> ProbeServer:
        for address in self._addresses:
            try:
                family = socket.AF_INET6 if ":" in address else socket.AF_INET
                listener = socket.create_server((address, 0), family=family, backlog=256)
            except OSError as error:
                await self.__aexit__()
                raise CalibrationError(
                    f"cannot listen on {address}: {error.strerror}",
                    hint="the fleet's networks are gone: start it again",
                ) from None
            self._listeners[address] = listener
            threading.Thread(target=self._accept, args=(listener,), name="edgebed-peer", daemon=True).start()
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

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except ConnectionAbortedError:  # of one connection: the others must still be heard
                continue
            except OSError:
                return
            threading.Thread(target=self._greet, args=(connection,), daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        """Read which probe a connection belongs to. The last connection of a probe starts the measurement, in this
        thread."""
        try:
            connection.settimeout(link_probe.PATIENCE_S)
            role = link_probe.Role.unpack(connection.recv(link_probe.Role.SIZE, socket.MSG_WAITALL))
        except (OSError, WireError):
            connection.close()
            return
        with self._lock:
            entry = self._expected.get(role.token)
            if entry is not None:
                entry.sockets.append(connection)
                ready = len(entry.sockets) == role.connections
        if entry is None:
            connection.close()
        elif ready:
            _settle(entry, role)


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
