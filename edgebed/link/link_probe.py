"""What both ends of a calibration share: a unit of CPU work, and raw bytes over TCP, timed by the receiver."""

from __future__ import annotations

import hmac
import selectors
import socket
import struct
import time
import zlib
from collections.abc import Callable, Sequence

import msgspec

from edgebed.errors import WireError

BLOCK = bytes(64 * 1024)
GO = b"G"
UNSENT_BYTES = 256 * 1024
TCP_NOTSENT_LOWAT = 25  # Linux; the socket module does not name it in 3.11
SO_TIMESTAMPNS = 35  # likewise
PATIENCE_S = 60.0
"""A link on which nothing moves for so long is broken."""

NONCE_BYTES = 16
_ROLE = struct.Struct("!32sBQI")
_TIMESPEC = struct.Struct("ll")

Wait = Callable[[int], None]
"""Called with the number of bytes about to be sent or just received. The software throttle sleeps here until its rate
allows them."""


def unit_of_work() -> None:
    """The checksum of 64 KiB: some 20 µs, nearly all of them without the interpreter lock."""
    zlib.crc32(BLOCK)


def units_per_cpu_s(seconds: float) -> float:
    """Units of work per CPU second of this thread, measured over `seconds` of wall time."""
    end, cpu, units = time.monotonic() + seconds, time.thread_time(), 0
    while time.monotonic() < end:
        unit_of_work()
        units += 1
    return units / max(time.thread_time() - cpu, 1e-9)


class Role(msgspec.Struct, frozen=True):
    """What a device answers to the nonce with which the server greets every connection. `size` is bytes in all;
    `proof` shows that it knows the probe's token, which does not cross the network here."""

    proof: bytes
    device_sends: bool
    size: int
    connections: int

    SIZE = _ROLE.size

    def pack(self) -> bytes:
        return _ROLE.pack(self.proof, self.device_sends, self.size, self.connections)

    @classmethod
    def of(cls, token: bytes, nonce: bytes, device_sends: bool, size: int, connections: int) -> Role:
        bare = cls(bytes(32), device_sends, size, connections)
        return cls(_proof(token, nonce, bare), device_sends, size, connections)

    def shows(self, token: bytes, nonce: bytes) -> bool:
        """Whether it is of a device that knows this token."""
        bare = Role(bytes(32), self.device_sends, self.size, self.connections)
        return hmac.compare_digest(self.proof, _proof(token, nonce, bare))

    @classmethod
    def unpack(cls, data: bytes) -> Role:
        """Raises WireError for other bytes, or more than a calibration ever asks for."""
        if len(data) != _ROLE.size:
            raise WireError("not a link probe")
        proof, sends, size, connections = _ROLE.unpack(data)
        if sends > 1 or not 0 < size <= 2**34 or not 0 < connections <= 64:
            raise WireError("not a link probe")
        return cls(proof, bool(sends), size, connections)


def _proof(token: bytes, nonce: bytes, bare: Role) -> bytes:
    return hmac.digest(token, nonce + bare.pack(), "sha256")


def greet(connection: socket.socket, token: bytes, device_sends: bool, size: int, connections: int) -> None:
    """Tell a probe server which probe a new connection belongs to. Raises OSError."""
    nonce = connection.recv(NONCE_BYTES, socket.MSG_WAITALL)
    if len(nonce) != NONCE_BYTES:
        raise ConnectionError("the probe server closed the connection")
    connection.sendall(Role.of(token, nonce, device_sends, size, connections).pack())


def token_of(probe_id: str) -> bytes:
    """16 bytes from a probe's id. Raises WireError where it is no hexadecimal of that length."""
    try:
        token = bytes.fromhex(probe_id)
    except ValueError:
        token = b""
    if len(token) != 16:
        raise WireError(f"a link probe needs an id of 32 hexadecimal digits, not {probe_id!r}")
    return token


def send(sockets: Sequence[socket.socket], total: int, wait: Wait | None = None) -> None:
    """Once the receiver says GO on every connection, send `total` bytes, over whichever connections take them; then
    wait until the receiver has them all and closes. Raises OSError: a connection broke, or nothing moved for
    PATIENCE_S."""
    with selectors.DefaultSelector() as selector:
        for connection in sockets:
            connection.settimeout(PATIENCE_S)
            if connection.recv(1) != GO:
                raise ConnectionError("the receiver refused the measurement")
            connection.setblocking(False)
            # Each buffer holds few unsent bytes, so that a connection that waits for a retransmission delays little.
            # Together they hold enough for the time in which the sender's CPU is throttled.
            connection.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, UNSENT_BYTES // len(sockets))
            selector.register(connection, selectors.EVENT_WRITE)
        paid = 0 if wait is not None else total  # bytes that may leave now
        while total:
            for connection in _ready(selector):
                if wait is not None and not paid:
                    paid = min(total, UNSENT_BYTES // len(sockets), len(BLOCK))
                    wait(paid)
                sent = connection.send(BLOCK[: min(paid, UNSENT_BYTES // len(sockets))])
                total, paid = total - sent, paid - sent
                if not total:
                    break
    for connection in sockets:
        connection.shutdown(socket.SHUT_WR)
    for connection in sockets:
        connection.settimeout(PATIENCE_S)
        connection.recv(1)


def receive(sockets: Sequence[socket.socket], total: int, wait: Wait | None = None) -> tuple[float, int]:
    """Receive `total` bytes over all connections; seconds from the first arrival to the last, and bytes without those
    of the first arrival.

    Without `wait` the kernel tells when bytes arrived: a receiver that is stopped by its quota, or serves other probes
    first, reads them later. With `wait` the receiver limits the rate itself, and bytes arrive when it lets them pass.
    Raises OSError: a connection broke or ended early, or nothing moved for PATIENCE_S.
    """
    got, first, first_at, last_at = 0, 0, 0.0, 0.0
    buffer = bytearray(1 << 20)
    # Woken for every segment, a device of 0.02 CPU would spend its quota on waking.
    low_water = max(1, min(total // len(sockets) // 8, 32 * 1024))
    with selectors.DefaultSelector() as selector:
        for connection in sockets:
            connection.settimeout(PATIENCE_S)
            connection.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            connection.sendall(GO)
            connection.setblocking(False)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low_water)
            selector.register(connection, selectors.EVENT_READ)
        while got < total:
            ready = _ready(selector)
            whole = not got and wait is None  # the first arrival is all that has come over any connection
            before = got
            for connection in sockets if whole else ready:
                count, arrived_at = _read(connection, buffer)
                if count == 0 and connection in ready:
                    selector.unregister(connection)
                    if not selector.get_map():
                        raise ConnectionError(f"the peer closed after {got} of {total} bytes")
                if count and wait is not None:
                    wait(count)
                    arrived_at = time.monotonic()
                got += count
                last_at = max(last_at, arrived_at)
            if not before:
                first, first_at = got, last_at
    return last_at - first_at, total - first


def _read(connection: socket.socket, buffer: bytearray) -> tuple[int, float]:
    """Bytes read, 0 if there are none, and when the last of them reached this host, in monotonic seconds."""
    try:
        count, notes, _, _ = connection.recvmsg_into([buffer], socket.CMSG_SPACE(_TIMESPEC.size))
    except BlockingIOError:
        return 0, 0.0
    for level, kind, data in notes:
        if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS):
            seconds, nanoseconds = _TIMESPEC.unpack(data)
            return count, time.monotonic() - (time.time() - seconds - nanoseconds / 1e9)
    return count, time.monotonic()


def _ready(selector: selectors.BaseSelector) -> list[socket.socket]:
    events = selector.select(PATIENCE_S)
    if not events:
        raise TimeoutError(f"nothing moved for {PATIENCE_S:.0f} s")
    return [key.fileobj for key, _ in events if isinstance(key.fileobj, socket.socket)]
