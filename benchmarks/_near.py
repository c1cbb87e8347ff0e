"""The near end of a transport benchmark: broker, orchestrator's Port, and the far process held by its pipes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec

from benchmarks._paths import ROOT
from benchmarks._peer import TOPICS
from edgebed.link.endpoint import ReceivedTransfer, TransferEndpoint
from edgebed.link.mqtt import MqttLink
from edgebed.wire.codecs import decode_tensors
from edgebed.wire.messages import Control, Ping, Pong
from edgebed.wire.topics import ORCHESTRATOR
from orchestrator.broker.open_broker import Broker, open_broker
from tests.broker_address import tcp_address


class Far:
    """The far process: one command, one answer."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def answer(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError("the far end of the benchmark ended")
        return dict(json.loads(line))

    async def do(self, what: str, **options: object) -> dict[str, float]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": what, **options}).encode() + b"\n")
        return await self.answer()


class Near:
    """The orchestrator's side: counts what arrives, times its pings."""

    def __init__(self, broker: Broker, port_options: dict[str, Any]) -> None:
        address = broker.address
        self.links = [MqttLink(address, f"bench-orchestrator-{kind}") for kind in ("control", "data")]
        self.endpoint = TransferEndpoint(
            ORCHESTRATOR, TOPICS, *self.links, deliver=self.deliver, on_control=self.on_control, **port_options
        )
        self.received = 0
        self.trips_ms: list[float] = []
        self._pong = asyncio.Event()

    async def deliver(self, inbound: ReceivedTransfer) -> None:
        decode_tensors(inbound.body)
        self.received += 1

    def on_control(self, peer: str, message: Control) -> None:
        if isinstance(message, Pong):
            self.trips_ms.append((time.monotonic_ns() - message.sent_ns) / 1e6)
            self._pong.set()

    async def ping(self) -> None:
        """One control round trip, then 10 ms of peace."""
        self._pong.clear()
        self.endpoint.control("dev", Ping(0, time.monotonic_ns()))
        await self._pong.wait()
        await asyncio.sleep(0.01)

    async def trips(self, until: asyncio.Future[Any] | None = None, count: int = 10**9) -> list[float]:
        """Control round trips in ms, one after the other, until a future is done or `count` is reached."""
        self.trips_ms = []
        while len(self.trips_ms) < count and (until is None or not until.done()):
            await self.ping()
        return self.trips_ms


@contextlib.asynccontextmanager
async def start_far(options: dict[str, Any], prefix: list[str] | None = None) -> AsyncIterator[Far]:
    command = [*(prefix or []), sys.executable, "-m", "benchmarks._peer", json.dumps(options)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, cwd=ROOT)
    try:
        far = Far(process)
        await far.answer()
        yield far
    finally:
        process.terminate()
        await process.wait()


@contextlib.asynccontextmanager
async def both_ends(
    host: str = "127.0.0.1",
    prefix: list[str] | None = None,
    *,
    paced: bool = True,
    **port_options: Any,
) -> AsyncIterator[tuple[Near, Far]]:
    """Broker, near end, and a device that reaches the broker at `host`."""
    async with open_broker([host]) as broker:
        near = Near(broker, port_options)
        near.endpoint.start()
        for link in near.links:
            await link.open()
        options = {"address": msgspec.to_builtins(tcp_address(broker, host)), "paced": paced, "port": port_options}
        async with start_far(options, prefix) as far:
            yield near, far
        await near.endpoint.close()
        for link in near.links:
            await link.close()


@contextlib.contextmanager
def raw_sink(host: str, size: int) -> Iterator[int]:
    """A TCP server that answers every `size` bytes with one; yields its port."""
    with socket.create_server((host, 0)) as server:
        threading.Thread(target=_drain, args=(server, size), daemon=True).start()
        yield server.getsockname()[1]


def _drain(server: socket.socket, size: int) -> None:
    buffer = bytearray(1 << 20)
    with contextlib.suppress(OSError):
        while True:
            sock, _ = server.accept()
            with sock:
                left = size
                while left > 0 and (got := sock.recv_into(buffer)):
                    left -= got
                sock.sendall(b".")
