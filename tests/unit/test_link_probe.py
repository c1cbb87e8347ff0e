"""Raw transfers of link probes: whole, and never ahead of a software throttle."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from edgebed.link import link_probe

PATIENCE_S = 20.0


class Counting(socket.socket):
    """A socket that knows what it has sent."""

    sent = 0

    def send(self, data: Any, flags: int = 0) -> int:
        count = super().send(data, flags)
        self.sent += count
        return count


def transfer(total: int, connections: int, wait: Any) -> tuple[list[Counting], int]:
    """Send `total` bytes to a receiver in another thread; the sockets, and the bytes that the receiver timed."""
    timed: list[int] = []
    near, far = list[Counting](), list[socket.socket]()
    with socket.create_server(("127.0.0.1", 0)) as server:
        for _ in range(connections):
            near.append(Counting())
            near[-1].connect(server.getsockname())
            far.append(server.accept()[0])

    def receive() -> None:
        timed.append(link_probe.receive(far, total)[1])
        for connection in far:
            connection.close()

    thread = threading.Thread(target=receive)
    thread.start()
    link_probe.send(near, total, wait and wait(near))
    thread.join(PATIENCE_S)
    for connection in near:
        connection.close()
    return near, timed[0]


@pytest.mark.parametrize("connections", [1, 8])
@pytest.mark.parametrize("total", [1, 64_000, 300_000])
def test_all_bytes_pass(total: int, connections: int) -> None:
    near, timed = transfer(total, connections, None)
    assert sum(connection.sent for connection in near) == total
    assert 0 <= timed < total


@pytest.mark.parametrize("connections", [1, 8])
@pytest.mark.parametrize("total", [1, 64_000, 300_000])
def test_no_byte_leaves_before_the_throttle_let_it_pass(total: int, connections: int) -> None:
    passed: list[int] = []

    def throttle(near: list[Counting]) -> link_probe.Wait:
        def wait(count: int) -> None:
            assert sum(connection.sent for connection in near) == sum(passed)
            passed.append(count)

        return wait

    near, _ = transfer(total, connections, throttle)
    assert sum(passed) == sum(connection.sent for connection in near) == total


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        return near, server.accept()[0]


@contextlib.contextmanager
def stamping() -> Iterator[None]:
    """The kernel stamps what arrives; it begins to do so a moment after the first socket has asked for it."""
    near, far = connected()
    with near, far:
        far.setsockopt(socket.SOL_SOCKET, link_probe.SO_TIMESTAMPNS, 1)
        deadline, stamped = time.monotonic() + PATIENCE_S, False
        while not stamped:
            assert time.monotonic() < deadline
            near.sendall(b"x")
            stamped = bool(far.recvmsg(1, 64)[1])
        yield


def test_the_kernel_tells_when_bytes_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    """The receiver's own clocks run 100 times too fast here."""
    begin, wall, size = time.monotonic(), time.time(), 8 << 20

    def ahead_s() -> float:
        return 100 * (time.monotonic() - begin)

    fast = SimpleNamespace(monotonic=lambda: begin + ahead_s(), time=lambda: wall + ahead_s())
    near, far = connected()
    with stamping():
        monkeypatch.setattr(link_probe, "time", fast)
        sender = threading.Thread(target=link_probe.send, args=([near], size))
        sender.start()
        start = time.monotonic()
        seconds, _ = link_probe.receive([far], size)
        elapsed = time.monotonic() - start
    far.close()
    sender.join(PATIENCE_S)
    near.close()
    assert 0 < seconds <= elapsed
