"""The boards service: what 10,000 wrong tokens cost, how long a right one waits meanwhile, and what TLS costs."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import psutil

from benchmarks._figures import figure, percentile
from edge_agent.board.client import Service
from edge_agent.board.join import join
from edge_agent.board.keystore import Keystore
from edgebed.link.connection import Address
from edgebed.link.endpoint import ReceivedTransfer, TransferEndpoint
from edgebed.link.mqtt import MqttLink
from edgebed.link.tls import client_context
from edgebed.wire.boards import Join, Token
from edgebed.wire.messages import Upload
from edgebed.wire.topics import ORCHESTRATOR, Topics
from orchestrator.boards.authority import Authority
from orchestrator.boards.members import Taken, claimed
from orchestrator.boards.registry import Store
from orchestrator.boards.service_folder import ServiceFolder
from tests.broker_address import free_port

HOST = "127.0.0.1"
WRONG, AT_ONCE = 10_000, 200
BATCH, TURNS = 26 << 20, 7


class Running:
    """`edgebed boards serve` as a process of its own, which boards reach at `host`."""

    def __init__(self, folder: Path, host: str = HOST) -> None:
        self.folder, self.place = folder, ServiceFolder(folder / "edgebed" / "boards")
        port, mqtt_port = free_port(), free_port()
        self.mqtt_port = mqtt_port
        self.service = Service(HOST, port)
        listen = HOST if host == HOST else "0.0.0.0"
        command = [sys.executable, "-m", "orchestrator", "boards", "serve", "--host", host, "--listen", listen]
        command += ["--port", str(port), "--mqtt-port", str(mqtt_port)]
        self._process = subprocess.Popen(
            command, env={**os.environ, "XDG_STATE_HOME": str(folder)}, stderr=subprocess.DEVNULL
        )
        self.process = psutil.Process(self._process.pid)
        while not (self.place.folder / "live.json").exists():
            time.sleep(0.1)
        self.ca = Authority(self.place.folder)

    def board(self, name: str) -> Keystore:
        with Store(self.place).change() as registry:
            secret = registry.invite(name, "", 3600.0, False, time.time())
        keys = Keystore(self.folder / name)
        join(self.service, str(Token(self.ca.fingerprint(), secret, name)), keys, lambda line: None)
        return keys

    def end(self) -> None:
        self._process.terminate()
        self._process.wait()


async def wrong_tokens(running: Running) -> None:
    left = iter(range(WRONG))
    before, begin = cpu_s(running.process), time.monotonic()
    attack = asyncio.gather(*[_attack(running, left) for _ in range(AT_ONCE)])
    waits: list[float] = []
    while not attack.done():
        started = time.monotonic()
        await asyncio.to_thread(running.board, f"b{len(waits)}")
        waits.append(time.monotonic() - started)
        await asyncio.sleep(1.0)
    took, used = time.monotonic() - begin, cpu_s(running.process) - before
    figure(f"{WRONG} wrong tokens: CPU ms of the service for each", used / WRONG * 1e3, most=10, note=f"{took:.0f} s")
    figure(
        "seconds of a right join meanwhile, p95", percentile(waits, 0.95), most=5, note=f"{len(waits)} of {len(waits)}"
    )


async def _attack(running: Running, left: object) -> None:
    """Wrong tokens, one connection each, from one address."""
    context = client_context(running.ca.pem.decode())
    body = msgspec.json.encode(Join("x" * 22, "no CSR"))
    head = f"POST /join HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    for _ in left:  # type: ignore[attr-defined]
        try:
            reader, writer = await asyncio.open_connection(HOST, running.service.port, ssl=context)
            writer.write(head + body)
            answer = await reader.read()
            assert b"this token is not known here" in answer or not answer  # or turned away as the oldest
            writer.close()
        except OSError:
            continue


async def tls(running: Running) -> None:
    """One batch over loopback and the broker, from a device to the orchestrator, with and without TLS in turns."""
    keys = await asyncio.to_thread(running.board, "pi")
    about, live = keys.service(), running.place.live()
    assert live is not None
    plain = live.broker
    secure = Address(HOST, about.mqtt_port, identity=keys.identity)
    body, seconds, used = os.urandom(BATCH), {plain: 0.0, secure: 0.0}, {plain: 0.0, secure: 0.0}
    with claimed(running.place, {"pi": about.board}, Taken("benchmark", "f1", os.getpid())):
        while (live := running.place.live()) is None or about.board not in live.fleets:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        for turn in range(TURNS):
            for address in (plain, secure):
                took, cpu = await _send(about.board, plain, address, body)
                if turn:  # the first one warms up
                    seconds[address] += took
                    used[address] += cpu
    size = BATCH * (TURNS - 1) / 1e6
    rate = f"{size / seconds[secure]:.0f} of {size / seconds[plain]:.0f} MB/s"
    figure("goodput on loopback, TLS ÷ plain", seconds[plain] / seconds[secure], note=rate)
    cost = f"{used[secure] / size * 1e3:.1f} and {used[plain] / size * 1e3:.1f} ms per MB, both ends"
    figure("CPU time of the ends, TLS ÷ plain", used[secure] / used[plain], note=cost)


async def _send(device: str, orchestrator: Address, address: Address, body: bytes) -> tuple[float, float]:
    """Seconds, and CPU seconds of both ends, which are this process."""
    sides = [await side(ORCHESTRATOR, orchestrator), await side(device, address)]
    begin, before = time.monotonic(), time.process_time()
    await sides[1][0].send(ORCHESTRATOR, Upload(device, "t", 0, 1), body)
    took = time.monotonic() - begin, time.process_time() - before
    for endpoint, control, data in sides:
        await endpoint.close()
        await data.close()
        await control.close()
    return took


async def side(name: str, address: Address) -> tuple[TransferEndpoint, MqttLink, MqttLink]:
    """Endpoint, control and data connection of a device or the orchestrator, which keeps nothing that arrives."""

    async def deliver(inbound: ReceivedTransfer) -> None:
        pass

    control, data = MqttLink(address, f"{name}-control"), MqttLink(address, f"{name}-data", keepalive_s=0, paced=True)
    endpoint = TransferEndpoint(name, Topics("f1"), control, data, deliver=deliver, on_control=lambda *_: None)
    endpoint.start()
    await control.open()
    await data.open()
    return endpoint, control, data


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        running = Running(Path(folder))
        try:
            asyncio.run(tls(running))
            asyncio.run(wrong_tokens(running))
        finally:
            running.end()
