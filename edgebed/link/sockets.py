"""What the kernel does for a TCP connection, and what it knows of one."""

from __future__ import annotations

import array
import fcntl
import resource
import socket
import struct
import termios

DEAD_AFTER_MS = 30_000
"""Unacknowledged data or probes for this long end a TCP connection."""
LAST_DATA_RECV = struct.Struct("=52xI")
"""The place in Linux's `struct tcp_info` of the milliseconds since data last arrived."""


def allow_connections() -> None:
    """As many open files as this user may have. A shell's usual limit of 1024 would end at 500 devices, which have two
    connections each and files, and could be used up by connections that are never completed."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def tune(sock: socket.socket) -> None:
    """Sends small messages at once (no Nagle) and notices a vanished peer (keepalive). Buffer sizes are left to the
    kernel's autotuning, which may go beyond the limit of `setsockopt`. A Unix socket needs none of this."""
    if sock.family == socket.AF_UNIX:
        return
    options = [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1), (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    for name, value in (
        ("TCP_KEEPIDLE", 10),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 4),
        ("TCP_USER_TIMEOUT", DEAD_AFTER_MS),
    ):
        if hasattr(socket, name):  # Linux has them all
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    for level, option, value in options:
        sock.setsockopt(level, option, value)


def timeval(seconds: float) -> bytes:
    """For SO_SNDTIMEO: the longest wait of a blocking call."""
    return struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))


def readable_bytes(sock: socket.socket) -> int:
    """Bytes that have arrived and are not read."""
    return _count(sock, termios.FIONREAD)


def unacknowledged_bytes(sock: socket.socket) -> int:
    """Bytes that were written and that the peer's kernel has not acknowledged."""
    return _count(sock, termios.TIOCOUTQ)


def idle_s(sock: socket.socket) -> float:
    """Seconds since data last arrived, read or not; since the connection began if none ever did."""
    return int(LAST_DATA_RECV.unpack_from(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104))[0]) / 1000


def _count(sock: socket.socket, request: int) -> int:
    number = array.array("i", [0])
    fcntl.ioctl(sock, request, number)
    return number[0]
