"""A boards service on loopback, and boards that join it, each in a folder of its own."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import http.client
import os
import ssl
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil

from edge_agent.board.client import Service
from edge_agent.board.join import join
from edge_agent.board.keystore import Keystore
from edgebed.link.connection import Address
from edgebed.link.mqtt import MqttLink
from edgebed.wire.boards import Token
from orchestrator.boards.authority import Authority
from orchestrator.boards.members import Taken, claimed
from orchestrator.boards.registry import Store
from orchestrator.boards.service import serve
from orchestrator.boards.service_folder import Live, ServiceFolder, Where
from tests.broker_address import free_port
from tests.waiting import until

HOST = "127.0.0.1"


class Lab:
    """Args:
    place: the service's folder; None: a new one.

    Attributes:
        said: what the service told people.
    """

    def __init__(self, folder: Path, place: Path | None = None) -> None:
        self.folder, self.place = folder, ServiceFolder(place or folder / "service")
        self.place.shards.mkdir(parents=True, exist_ok=True)
        self.port, self.mqtt_port = free_port(), free_port()
        self.store, self.said = Store(self.place), list[str]()
        self.service = Service(HOST, self.port)
        self.request = Where((HOST,), self.port, self.mqtt_port, HOST)
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        ready = asyncio.Event()
        self._serving = asyncio.create_task(serve(self.request, self.place, self.said.append, ready.set))
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait([waiting, self._serving], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._serving.done():
            self._serving.result()

    async def stop(self) -> None:
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.gather(self._serving, return_exceptions=True)

    @property
    def live(self) -> Live:
        live = self.place.live()
        assert live is not None
        return live

    @property
    def orchestrator(self) -> Address:
        return self.live.broker

    def token(self, name: str, *, lasts_s: float = 3600.0, replace: bool = False) -> Token:
        with self.store.change() as registry:
            secret = registry.invite(name, "", lasts_s, replace, time.time())
        return Token(Authority(self.place.folder).fingerprint(), secret, name)

    def keys(self, name: str) -> Keystore:
        return Keystore(self.folder / name)

    async def board(self, name: str, *, allow_code: bool = False) -> Keystore:
        """A board that has joined."""
        keys, token = self.keys(name), str(self.token(name))
        await asyncio.to_thread(join, self.service, token, keys, self.said.append, allow_code=allow_code)
        return keys

    def revoke(self, name: str) -> int:
        """Returns the version of the registry that has it."""
        with self.store.change() as registry:
            registry.revoke(registry.find(name), "by hand", time.time())
        return self.store.read().version

    @contextlib.asynccontextmanager
    async def working(self, fleet: str, *keys: Keystore) -> AsyncIterator[None]:
        """A fleet of this id has the boards, without an order."""
        ids = {each.service().name: each.service().board for each in keys}
        with claimed(self.place, ids, Taken("test", fleet, os.getpid())):
            await until(lambda: dict.fromkeys(ids.values(), fleet).items() <= self.live.fleets.items())
            yield

    def broker(self) -> psutil.Process:
        """The process of Mosquitto."""
        (found,) = [each for each in psutil.Process().children() if each.name() == "mosquitto"]
        return found

    def offer(self, shard: bytes) -> str:
        """Put a shard where boards get it; returns its SHA-256."""
        sha256 = hashlib.sha256(shard).hexdigest()
        (self.place.shards / f"{sha256}.safetensors").write_bytes(shard)
        return sha256

    def link(self, keys: Keystore, client: str, **options: object) -> MqttLink:
        return MqttLink(Address(HOST, self.mqtt_port, identity=keys.identity), client, **options)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def standing(keys: Keystore) -> AsyncIterator[asyncio.subprocess.Process]:
    """`edgebed-agent run` of a board that has joined; killed at the end."""
    command = [sys.executable, "-m", "edge_agent.entry", "run"]
    env = {**os.environ, "EDGEBED_BOARD": str(keys.folder)}
    process = await asyncio.create_subprocess_exec(*command, env=env)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@contextlib.asynccontextmanager
async def running(folder: Path, place: Path | None = None) -> AsyncIterator[Lab]:
    lab = Lab(folder, place)
    await lab.start()
    try:
        yield lab
    finally:
        await lab.stop()


class Orchestrator:
    """Hears everything on the broker."""

    def __init__(self, lab: Lab) -> None:
        self.heard: dict[str, bytes] = {}
        self.link = MqttLink(lab.orchestrator, f"orchestrator-{time.monotonic_ns()}")
        self.link.subscribe("#", self.heard.__setitem__)

    async def __aenter__(self) -> Orchestrator:
        await self.link.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.link.close()


def status(lab: Lab, context: ssl.SSLContext, method: str, path: str, body: bytes = b"") -> int:
    """Of the answer to a request; blocks."""
    connection = http.client.HTTPSConnection(HOST, lab.port, timeout=10, context=context)
    try:
        connection.request(method, path, body)
        return connection.getresponse().status
    finally:
        connection.close()


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder
