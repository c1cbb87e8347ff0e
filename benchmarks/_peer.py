"""The far end of a transport benchmark, in a process of its own: a device on MQTT, or the client of a raw TCP socket.

Reads one JSON command per line on standard input, answers each with one JSON line.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch

from edgebed.link.connection import Address
from edgebed.link.endpoint import ReceivedTransfer, TransferEndpoint
from edgebed.link.mqtt import MqttLink
from edgebed.wire.codecs import decode_tensors, encode_tensors
from edgebed.wire.messages import Control, Ping, Pong, Upload
from edgebed.wire.settings import Codec
from edgebed.wire.topics import ORCHESTRATOR, Topics

TOPICS = Topics("bench")
BATCH = (100, 64, 32, 32)
"""26.2 MB of float32: the features of a batch of 100 at ResNet-56's first cut."""


def batch() -> torch.Tensor:
    return torch.randn(BATCH, generator=torch.Generator().manual_seed(0)).relu()


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def memory_mb(field: str) -> float:
    """VmRSS (now) or VmHWM (greatest since `reset_peak`)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


class ProbeServer:
    """A device that answers pings and can upload batches."""

    def __init__(self, options: dict[str, Any]) -> None:
        address = Address(**options["address"])
        self.control = MqttLink(address, "bench-dev-control")
        self.data = MqttLink(address, "bench-dev-data", keepalive_s=0, paced=options.get("paced", True))
        self.received = 0
        self.endpoint = TransferEndpoint(
            "dev", TOPICS, self.control, self.data, deliver=self.deliver, on_control=self.on_control,
            **options.get("port", {}),
        )  # fmt: skip

    async def open(self) -> None:
        self.endpoint.start()
        await self.control.open()
        await self.data.open()

    async def deliver(self, inbound: ReceivedTransfer) -> None:
        decode_tensors(inbound.body)
        self.received += 1

    def on_control(self, peer: str, message: Control) -> None:
        if isinstance(message, Ping):
            self.endpoint.control(ORCHESTRATOR, Pong("dev", message.seq, message.sent_ns, time.monotonic_ns()))

    async def upload(self, count: int, parallel: int) -> dict[str, float]:
        """Encode and send `count` batches, `parallel` at once; done when the far application has the last."""
        tensor, left = batch(), iter(range(count))
        begin, cpu = time.perf_counter(), time.process_time()

        async def stream() -> int:
            sent = 0
            for n in left:
                body = encode_tensors({"features": tensor}, Codec())
                await self.endpoint.send(ORCHESTRATOR, Upload("dev", "bench", n, 100), body)
                sent += len(body)
            return sent

        size = sum(await asyncio.gather(*[stream() for _ in range(parallel)]))
        return {"seconds": time.perf_counter() - begin, "bytes": size, "cpu_s": time.process_time() - cpu}


def raw_send(host: str, port: int, size: int) -> dict[str, float]:
    """A plain TCP socket: send `size` bytes, wait for one byte that says they have arrived."""
    block = memoryview(bytes(size))
    with socket.create_connection((host, port)) as sock:
        begin = time.perf_counter()
        sock.sendall(block)
        sock.recv(1)
        return {"seconds": time.perf_counter() - begin}


async def obey(peer: ProbeServer | None, command: dict[str, Any]) -> dict[str, float]:
    do = command.pop("do")
    if do == "raw":
        return await asyncio.to_thread(raw_send, **command)
    assert peer is not None
    if do == "upload":
        return await peer.upload(**command)
    if do == "reset":
        reset_peak()
    return {"rss": memory_mb("VmRSS"), "peak": memory_mb("VmHWM"), "cpu_s": time.process_time(), "got": peer.received}


async def main() -> None:
    torch.set_num_threads(1)
    lines: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        os._exit(0)  # the benchmark is over

    peer: ProbeServer | None = None
    options = json.loads(sys.argv[1])
    if options:
        peer = ProbeServer(options)
        await peer.open()
    print(json.dumps({"ready": True}), flush=True)
    threading.Thread(target=read, daemon=True).start()
    while True:
        print(json.dumps(await obey(peer, json.loads(await lines.get()))), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
