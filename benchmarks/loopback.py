"""Unshaped goodput, broker hop included, against a gRPC stream of 1 MiB chunks between two processes."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator

import grpc

from benchmarks._figures import figure
from benchmarks._near import both_ends

BATCHES, ROUNDS = 16, 3
CHUNK = 1 << 20
METHOD = "/bench/stream"
NO_LIMIT = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]

SERVER = f"""
import grpc, sys
from concurrent import futures
class Handler(grpc.GenericRpcHandler):
    def service(self, details):
        return grpc.stream_unary_rpc_method_handler(lambda chunks, _: b"%d" % sum(map(len, chunks)))
server = grpc.server(futures.ThreadPoolExecutor(2), handlers=[Handler()], options={NO_LIMIT!r})
print(server.add_insecure_port("127.0.0.1:0"), flush=True)
server.start()
sys.stdin.read()
"""


@contextlib.contextmanager
def grpc_server() -> Iterator[str]:
    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"127.0.0.1:{int(process.stdout.readline())}"
        process.kill()


def grpc_seconds(target: str, size: int) -> float:
    """Send `size` bytes in chunks of 1 MiB, cut from one body as ours are, until the server has counted them."""
    body = bytes(size)
    with grpc.insecure_channel(target, options=NO_LIMIT) as channel:
        grpc.channel_ready_future(channel).result(timeout=20)
        stream = channel.stream_unary(METHOD)
        begin = time.perf_counter()
        counted = stream(body[at : at + CHUNK] for at in range(0, size, CHUNK))
        assert int(counted) == size
        return time.perf_counter() - begin


async def measure() -> None:
    async with both_ends() as (_, far):
        await far.do("upload", count=2, parallel=2)
        ours, theirs, cpu = [], [], []
        with grpc_server() as target:
            for _round in range(ROUNDS):
                near_cpu = time.process_time()
                sent = await far.do("upload", count=BATCHES, parallel=2)
                cpu.append((sent["cpu_s"], time.process_time() - near_cpu))
                ours.append(sent["bytes"] / sent["seconds"] / 1e6)
                theirs.append(sent["bytes"] / await asyncio.to_thread(grpc_seconds, target, int(sent["bytes"])) / 1e6)
    megabytes = sent["bytes"] / 1e6
    device, orchestrator = (1000 * min(c[i] for c in cpu) / megabytes for i in (0, 1))
    figure("loopback goodput ÷ gRPC stream of 1 MiB chunks", max(ours) / max(theirs), note="aim: 1")
    figure("  agent -> broker -> orchestrator, MB/s", max(ours), note=f"median {sorted(ours)[1]:.0f}")
    figure("  gRPC, one hop, MB/s", max(theirs), note=f"median {sorted(theirs)[1]:.0f}")
    note = f"agent {device:.2f}, orchestrator {orchestrator:.2f} ms per MB; the broker takes the rest of the cores"
    figure("  CPU of the busier end, share of the wall clock", max(device, orchestrator) * max(ours) / 1000, note=note)


def main() -> None:
    asyncio.run(measure())
