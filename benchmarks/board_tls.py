"""TLS on a board-like client of 0.2 CPU: goodput and CPU time at 10, 30, 100 Mbit/s, and how soon a revocation cuts.

Three clients, without TLS, with AES-GCM and with ChaCha20, send and receive in turns over one shaped link.
`BOARD_TLS_MB=2 BOARD_TLS_TURNS=1` makes it shorter.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from benchmarks._figures import figure, skip
from benchmarks._link import missing, shaped_link
from benchmarks._near import Far
from benchmarks.boards_service import HOST, Running, side
from edge_agent.board.cipher import ONLY_CHACHA20
from edgebed.limits.cgroups import Cgroup, join
from edgebed.limits.spec import Limits
from edgebed.link.connection import Address
from edgebed.link.endpoint import TransferEndpoint
from edgebed.link.mqtt import MqttLink
from edgebed.link.tls import Identity
from edgebed.wire.messages import Reply, Upload
from edgebed.wire.topics import ORCHESTRATOR
from orchestrator.boards.members import Taken, claimed
from orchestrator.boards.registry import Store
from orchestrator.broker.open_broker import open_broker

RATES = (10, 30, 100)
CPUS = 0.2
SIZE = int(os.environ.get("BOARD_TLS_MB", "8")) << 20
TURNS = int(os.environ.get("BOARD_TLS_TURNS", "4"))
SECURE = ("AES-GCM", "ChaCha20")
REVOKED = 5


class Spent(msgspec.Struct):
    """Of one kind of client: seconds up and down, and CPU seconds, for SIZE bytes each way and turn."""

    up: float = 0.0
    down: float = 0.0
    cpu: float = 0.0


class Client(Far):
    """A device in a process of its own, and the orchestrator's endpoint on the same broker."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, near: TransferEndpoint) -> None:
        super().__init__(process)
        self._name, self._near = name, near

    async def turn(self, spent: Spent, body: bytes) -> None:
        """One transfer each way."""
        before = (await self.do("look"))["cpu_s"]
        spent.up += (await self.do("send"))["seconds"]
        begin = time.perf_counter()
        await self._near.send(self._name, Reply("bench", 0), body)
        spent.down += time.perf_counter() - begin
        spent.cpu += (await self.do("look"))["cpu_s"] - before


@contextlib.asynccontextmanager
async def client(
    name: str, prefix: list[str], near: TransferEndpoint, far: Address, environment: dict[str, str]
) -> AsyncIterator[Client]:
    """A client whose process has CPUS once it is connected."""
    folder = str(far.identity.key.parent) if far.identity else ""
    options = [name, far.host, str(far.port), far.username, far.password, folder]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *prefix, sys.executable, "-m", "benchmarks.board_tls",
        stdin=pipe, stdout=pipe, env={**os.environ, **environment},
    )  # fmt: skip
    cgroup = Cgroup.named(f"bench-{process.pid}")
    made = Client(name, process, near)
    try:
        await made.do("start", options=options)
        cgroup.make()
        cgroup.set(Limits(cpus=CPUS, uplink_bit_s=10**9, downlink_bit_s=10**9, memory_mib=512))
        join(cgroup, process.pid)
        yield made
    finally:
        process.terminate()
        await process.wait()
        cgroup.remove()


@contextlib.asynccontextmanager
async def orchestrator(address: Address) -> AsyncIterator[TransferEndpoint]:
    endpoint, control, data = await side(ORCHESTRATOR, address)
    yield endpoint
    for each in (endpoint, data, control):
        await each.close()


async def measure(mbit: int, running: Running, boards: dict[str, Identity], environment: dict[str, str]) -> None:
    live = running.place.live()
    assert live is not None
    local = live.broker
    spent: dict[str, Spent] = defaultdict(Spent)
    ids = {kind: identity.key.parent.name for kind, identity in boards.items()}
    async with contextlib.AsyncExitStack() as stack:
        enter = stack.enter_async_context
        stack.enter_context(claimed(running.place, ids, Taken("benchmark", "f1", os.getpid())))
        while (live := running.place.live()) is None or not set(ids.values()) <= set(live.fleets):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        link = stack.enter_context(shaped_link(mbit))
        broker = await enter(open_broker([link.host], kinds=["mosquitto"], fleet="f1", devices=["dev"]))
        near = await enter(orchestrator(broker.address))
        far = broker.access(link.host, "dev")
        clients = {"plain": await enter(client("dev", link.prefix, near, far, {}))}
        near = await enter(orchestrator(local))
        for kind, identity in boards.items():
            far = Address(link.host, running.mqtt_port, identity=identity)
            more = environment if kind == "ChaCha20" else {}
            clients[kind] = await enter(client(ids[kind], link.prefix, near, far, more))
        body = os.urandom(SIZE)
        for number in range(TURNS + 1):
            for kind, each in clients.items():
                await each.turn(spent[kind] if number else Spent(), body)  # the first one warms up
    show(mbit, spent)


def show(mbit: int, spent: dict[str, Spent]) -> None:
    size = SIZE * TURNS / 1e6
    plain = spent["plain"]
    for kind in SECURE:
        secure = spent[kind]
        for way, slow, quick in (("up", secure.up, plain.up), ("down", secure.down, plain.down)):
            note = f"{size * 8 / slow:.2f} of {size * 8 / quick:.2f} Mbit/s"
            figure(f"goodput {way} at {mbit} Mbit/s, {kind} ÷ plain", quick / slow, least=0.9, note=note)
        note = f"{secure.cpu / size * 500:.1f} and {plain.cpu / size * 500:.1f} ms per MB"
        figure(f"CPU time per MB at {mbit} Mbit/s, {kind} ÷ plain", secure.cpu / plain.cpu, note=note)


async def revocations(running: Running) -> None:
    """Seconds from the change of the registry until the board's connection is closed."""
    took: list[float] = []
    for number in range(REVOKED):
        keys = await asyncio.to_thread(running.board, f"gone{number}")
        link = MqttLink(Address(HOST, running.mqtt_port, identity=keys.identity), f"session-{number}")
        await link.open()
        begin = time.monotonic()
        with Store(running.place).change() as registry:
            registry.revoke(registry.find(f"gone{number}"), "by hand", time.time())
        while link.connected:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        took.append(time.monotonic() - begin)
        await link.close()
    figure("seconds until a revoked board's session is closed, most", max(took), most=2, note=f"of {REVOKED}")


def main() -> None:
    if why := missing():
        skip(why)
        return
    with tempfile.TemporaryDirectory() as folder:
        running = Running(Path(folder), f"10.213.{os.getpid() % 250}.1")
        try:
            asyncio.run(revocations(running))
            boards = {kind: _joined(running, kind) for kind in SECURE}
            config = Path(folder) / "openssl.cnf"
            config.write_text(ONLY_CHACHA20)
            for mbit in RATES:
                asyncio.run(measure(mbit, running, boards, {"OPENSSL_CONF": str(config)}))
        finally:
            running.end()


def _joined(running: Running, kind: str) -> Identity:
    """The files of a new board, in a folder with its id as name."""
    keys = running.board(kind)
    folder = running.folder / keys.service().board
    keys.folder.rename(folder)
    return Identity.of(folder)


# ---- the client's process ----


async def serve(name: str, host: str, port: str, user: str, password: str, folder: str) -> None:
    address = Address(host, int(port), user, password, Identity.of(Path(folder)) if folder else None)
    endpoint, *_ = await side(name, address)
    body = os.urandom(SIZE)
    begin = time.perf_counter()
    while True:
        print(json.dumps({"cpu_s": time.process_time(), "seconds": time.perf_counter() - begin}), flush=True)
        what = json.loads(await asyncio.to_thread(sys.stdin.readline))["do"]
        begin = time.perf_counter()
        if what == "send":
            await endpoint.send(ORCHESTRATOR, Upload(name, "bench", 0, 1), body)


if __name__ == "__main__":
    asyncio.run(serve(*json.loads(sys.stdin.readline())["options"]))
