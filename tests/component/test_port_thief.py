"""A program of another user that takes the port of a broker of ours sees no password of the orchestrator."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from edgebed.errors import LinkError
from edgebed.link.connection import Address
from edgebed.link.mqtt import MqttLink
from orchestrator.boards.boards_broker import BoardsBroker
from orchestrator.boards.service_folder import Where
from orchestrator.broker import container as container_broker
from orchestrator.broker import open_broker as module
from orchestrator.broker.open_broker import Broker, open_broker
from tests.broker_address import tcp_address
from tests.component._boards import Lab
from tests.component._foreign import Foreign
from tests.waiting import until

THIEF = """
import os, socket, sys, time
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
found, deadline = socket.socket(), time.monotonic() + 20
found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
print("here", flush=True)
while True:
    try:
        found.bind(("127.0.0.1", int(sys.argv[1])))
        found.listen()
        break
    except OSError:
        if time.monotonic() > deadline:
            sys.exit()
        time.sleep(0.001)
print("bound", flush=True)
while True:
    came, _ = found.accept()
    came.settimeout(5)
    print(came.recv(4096).hex(), flush=True)
    came.close()
"""


class Thief:
    """Another user's program that tries to listen at a port of loopback, and tells what is sent to it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process, self.said = process, list[str]()
        self._hearing = asyncio.create_task(self._hear())

    @classmethod
    @contextlib.asynccontextmanager
    async def at(cls, port: int) -> AsyncIterator[Thief]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", "-c", THIEF, str(port)), stdout=asyncio.subprocess.PIPE
        )
        thief = cls(process)
        try:
            await until(lambda: "here" in thief.said)
            yield thief
        finally:
            process.kill()
            await process.wait()
            await thief._hearing

    async def _hear(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self.said.append(line.decode().strip())

    def saw(self, password: str) -> bool:
        return any(password.encode().hex() in line for line in self.said)


class Attempts:
    """A link of the orchestrator, and how often it has tried to connect."""

    def __init__(self, address: Address) -> None:
        self.number, self._address = 0, address
        self.link = MqttLink(self._count, "orchestrator's")

    def _count(self) -> Address:
        self.number += 1
        return self._address


async def rob(broker: Broker, thief: Thief, tries: int) -> None:
    """Kill the broker; returns when the orchestrator has tried so many times to reach it again."""
    attempts = Attempts(broker.address)
    await attempts.link.open()
    pid = broker.pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await until(lambda: attempts.number > tries)
    await attempts.link.close()
    assert not thief.saw(broker.address.password)


@pytest.mark.parametrize("kind", [pytest.param("mosquitto", marks=pytest.mark.mosquitto), "embedded"])
async def test_the_port_of_a_broker_that_was_killed_cannot_be_taken(kind: str) -> None:
    async with open_broker([], kinds=[kind]) as broker, Thief.at(broker.port) as thief:
        await rob(broker, thief, 4 if kind == "mosquitto" else 1)
        assert thief.said == ["here"]


@pytest.mark.docker
@pytest.mark.mosquitto
async def test_the_port_of_a_container_that_was_killed_cannot_be_taken(
    monkeypatch: pytest.MonkeyPatch, mosquitto_image: str
) -> None:
    monkeypatch.setattr(container_broker, "IMAGES", (mosquitto_image,))
    async with open_broker([], kinds=["container"]) as broker, Thief.at(broker.port) as thief:
        await rob(broker, thief, 4)
        assert thief.said == ["here"]


@pytest.mark.mosquitto
async def test_who_has_the_port_of_a_mosquitto_all_the_same_is_not_shown_the_orchestrators_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_keep", lambda sockets, alone: [each.close() for each in sockets])
    async with open_broker([], kinds=["mosquitto"]) as broker, Thief.at(broker.port) as thief:
        await rob(broker, thief, 4)
        await until(lambda: "bound" in thief.said)
        careless = Attempts(tcp_address(broker))  # as it was done once: or this test could not fail
        with contextlib.suppress(LinkError):
            await careless.link.open()
        await until(lambda: thief.saw(broker.address.password))


@pytest.mark.mosquitto
async def test_the_port_of_a_relay_cannot_be_taken(tmp_path: Path) -> None:
    users = {"orchestrator": "boss", "a": "of a"}
    async with (
        Foreign(tmp_path, users).running() as foreign,
        open_broker([], foreign.own(), devices=["a"]) as broker,
        Thief.at(broker.port) as thief,
    ):
        await rob(broker, thief, 1)
        assert thief.said == ["here"]


@pytest.mark.mosquitto
async def test_the_boards_service_has_no_port_for_a_password_and_a_new_one_at_each_start(lab: Lab) -> None:
    (mosquitto,) = [each for each in psutil.Process().children() if each.name() == "mosquitto"]
    ports = {each.laddr.port for each in mosquitto.net_connections("tcp") if each.status == psutil.CONN_LISTEN}
    assert ports == {lab.mqtt_port}
    first = lab.live
    broker = BoardsBroker(lab.place, first, Where(("h",), 1, 2), started=False)
    link = MqttLink(broker.find, "orchestrator's")
    await link.open()
    await lab.stop()
    await until(lambda: not link.connected)
    await lab.start()
    await until(lambda: link.connected)
    await link.close()
    assert lab.live.broker.host != first.broker.host
    assert lab.live.broker.password != first.broker.password
    kept = [path for path in lab.place.folder.rglob("*") if path.is_file() and path.name != "live.json"]
    assert kept
    assert not [path for path in kept if lab.live.broker.password.encode() in path.read_bytes()]
