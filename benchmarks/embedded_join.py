"""How long fleets take to join over the embedded broker: light agents, of two connections each, one after the other."""

from __future__ import annotations

import asyncio
import contextlib
import time

import psutil

from benchmarks._figures import figure
from edgebed.errors import LinkError
from edgebed.link.mqtt import MqttLink
from edgebed.wire.messages import PhasesSeen, Presence, Status, decode_control, encode
from edgebed.wire.topics import ORCHESTRATOR, Topics
from orchestrator.broker.open_broker import Broker, open_broker
from tests.broker_address import tcp_address

SIZES = (140, 200)
BEAT_S, STEADY_S = 5.0, 20.0
PER_S = 20
"""Agents that begin each second: as forked ones do, when two cores load them."""

MOST_S = 60.0
"""To join; an orchestrator waits 180 s, and a real agent needs time of its own."""


class Agent:
    """Connects like an agent, says that it is there, and sends heartbeats; `lost` counts those not answered in time."""

    def __init__(self, broker: Broker, name: str) -> None:
        self.name, self.joined, self.lost, self.answered = name, asyncio.Event(), 0, False
        address = tcp_address(broker, device=name)
        self._topics = Topics("bench")
        will = (self._topics.state(self.name), encode(Presence(self.name, "i", False, 1)), True)
        self._control = MqttLink(address, f"{self.name}-control", will=will, keepalive_s=60)
        self._data = MqttLink(address, f"{self.name}-data", keepalive_s=0)

    async def run(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        self._control.subscribe(self._topics.control_to(self.name), self._heard)
        self._data.subscribe(self._topics.data_to(self.name), lambda topic, payload: None)
        await self._control.open()
        await self._data.open()
        presence = Presence(self.name, "i", True, 1, host={"filler": "x" * 150})
        self._control.publish(self._topics.state(self.name), encode(presence), retain=True)
        while True:
            self.answered = False
            status = Status(self.name, "i", 0, "", "waiting", 0, 0.0, 0)
            self._control.publish(self._topics.control_from(self.name), encode(status))
            await asyncio.sleep(BEAT_S)
            self.lost += self.joined.is_set() and not self.answered

    def _heard(self, topic: str, payload: bytes) -> None:
        self.answered = True
        self.joined.set()

    async def close(self) -> None:
        await self._control.close()
        await self._data.close()


async def measure(names: list[str], broker: Broker) -> None:
    topics, size = Topics("bench"), len(names)
    orchestrator = MqttLink(tcp_address(broker), ORCHESTRATOR)

    def answer(topic: str, payload: bytes) -> None:
        message = decode_control(payload)
        if isinstance(message, Status):
            orchestrator.publish(topics.control_to(message.device), encode(PhasesSeen("i", 0)))

    for filter_ in (topics.control_from("+"), topics.state("+"), topics.data_from("+")):
        orchestrator.subscribe(filter_, answer)
    await orchestrator.open()
    server = psutil.Process().children()[0]
    agents = [Agent(broker, name) for name in names]
    start, cpu = time.monotonic(), sum(server.cpu_times()[:2])
    work = [asyncio.create_task(agent.run(number / PER_S)) for number, agent in enumerate(agents)]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(3 * MOST_S):
            for agent in agents:
                await agent.joined.wait()
    took = time.monotonic() - start
    cpu = sum(server.cpu_times()[:2]) - cpu
    failed = [task for task in work if task.done() and isinstance(task.exception(), LinkError)]
    joined = sum(agent.joined.is_set() for agent in agents)
    figure(
        f"{size} agents: seconds until all have joined",
        took,
        most=MOST_S,
        note=f"{joined} joined; broker {cpu:.1f} s of CPU",
    )
    figure(f"{size} agents: refused or let go at once", len(failed), most=0)
    if joined == size:
        cpu = sum(server.cpu_times()[:2])
        await asyncio.sleep(STEADY_S)
        busy = (sum(server.cpu_times()[:2]) - cpu) / STEADY_S
        figure(f"{size} agents: share of a CPU for heartbeats alone", busy, note=f"one per agent in {BEAT_S:.0f} s")
        figure(f"{size} agents: heartbeats not answered in time", sum(agent.lost for agent in agents), most=0)
    for task in work:
        task.cancel()
    await asyncio.gather(*work, return_exceptions=True)
    await asyncio.gather(*(agent.close() for agent in agents), orchestrator.close())


async def all_sizes() -> None:
    for size in SIZES:
        names = [f"d{number}" for number in range(size)]
        async with open_broker([], kinds=["embedded"], fleet="bench", devices=names) as broker:
            await measure(names, broker)


def main() -> None:
    asyncio.run(all_sizes())
