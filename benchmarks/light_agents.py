"""What one orchestrator and one Mosquitto cost with many devices that do not train.

The agents are real, without limits, a hundred to a process. A device gets the weights of a small network (2.5 KB) and
sends them back unchanged. The round's overhead is its time without the work of its last device, as in `round_overhead`.
The agents' CPU time is printed beside that of orchestrator, trainer and broker, because they share the host's cores.

Environment: LIGHT_SIZES (100,300,500), LIGHT_ROUNDS (12).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import psutil

from benchmarks._figures import figure, percentile, skip
from benchmarks.round_overhead import overhead_ms
from edge_agent.agent import Agent
from edge_agent.settings import AgentSettings, new_incarnation, presence
from edge_agent.software_throttle import SoftwareThrottle
from edge_agent.training import DeviceTrainer
from edgebed.device.core import Result
from edgebed.link.connection import Address
from edgebed.link.mqtt import MqttLink
from edgebed.wire.messages import Task
from edgebed.wire.topics import ORCHESTRATOR, Topics
from orchestrator.broker.open_broker import Broker, open_broker
from orchestrator.calibration.calibrate import Calibration
from orchestrator.experiment import Experiment, Training
from orchestrator.fleet.base import Enforcement
from orchestrator.fleet.control.controller import FleetController
from orchestrator.fleet.spec.profile import DeviceSpec, FleetSpec, load_profile
from orchestrator.records.reader import read
from orchestrator.records.run_index import sort
from orchestrator.records.timeline.timeline import timelines
from orchestrator.runs import session
from orchestrator.runs.data import prepare_data
from orchestrator.training.process import TrainerProcess
from tests.component._fleet import WIDE, NoBackend

FLEET, HEARTBEAT_S = "light", 5.0
PER_PROCESS = 100


class Echo(DeviceTrainer):
    """Sends the weights back."""

    def run(self, task: Task, body: Any, io: Any, threads: int, cpus: float = 0.0) -> Result:
        self._phases.enter("compute", task.id)
        return Result(bytes(body), self._shard.samples, 1, 0.0, {})


async def serve(settings: list[AgentSettings]) -> None:
    """The agents of one process, until Shutdown."""
    async with asyncio.TaskGroup() as group:
        for each in settings:
            address, incarnation = Address(each.host, each.port, each.username, each.password), new_incarnation()
            will = (Topics(FLEET).state(each.device), presence(each, incarnation, False), True)
            control = MqttLink(address, f"{each.device}-control", will=will, keepalive_s=60)
            data = MqttLink(address, f"{each.device}-data", keepalive_s=0)
            group.create_task(Agent(each, incarnation, control, data, SoftwareThrottle(), Echo).run())
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def agents(settings: list[AgentSettings]) -> AsyncIterator[list[psutil.Process]]:
    """Processes with PER_PROCESS agents each. They end with the fleet."""
    code = f"from {__name__} import child; child()"
    made = []
    for first in range(0, len(settings), PER_PROCESS):
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdin=asyncio.subprocess.PIPE)
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(settings[first : first + PER_PROCESS], enc_hook=str))
        process.stdin.close()
        made.append(process)
    try:
        yield [psutil.Process(process.pid) for process in made]
    finally:
        async with asyncio.timeout(60):
            await asyncio.gather(*(process.wait() for process in made))


def child() -> None:
    """Reads the settings from standard input."""
    asyncio.run(serve([AgentSettings(**{**each, "shard": Path(each["shard"])}) for each in json.load(sys.stdin)]))


class Costs(session.Watch):
    """CPU seconds and memory of the processes, at the end of each round."""

    def __init__(self, parts: dict[str, list[psutil.Process]]) -> None:
        super().__init__()
        self._parts = parts
        self.rounds: list[tuple[float, dict[str, float]]] = []
        self._memory: dict[str, float] = {}

    def round(self, *_: Any) -> None:
        self.rounds.append((time.monotonic(), {name: _cpu_s(group) for name, group in self._parts.items()}))
        self._memory = {
            name: sum(each.memory_info().rss for each in group) / 1e6 for name, group in self._parts.items()
        }

    def show(self, size: int) -> None:
        """From the second round on."""
        (begun, before), (ended, after) = self.rounds[1], self.rounds[-1]
        wall, rounds = ended - begun, len(self.rounds) - 2
        figure(f"{size} agents: seconds of a round", wall / rounds)
        for name, memory in self._memory.items():
            cpu = after[name] - before[name]
            note = f"{cpu / wall:.0%} of a core, {memory:.0f} MB"
            figure(f"{size} agents: {name}, CPU seconds a round", cpu / rounds, note=note)


def _cpu_s(group: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in group)


async def measure(size: int, folder: Path) -> None:
    experiment = Experiment(
        name="light",
        fleet="fleet.yaml",
        model={"name": "fcnn", "hidden": [8]},
        methods=[{"name": "fedavg"}],
        training=msgspec.convert({"rounds": int(os.environ.get("LIGHT_ROUNDS", "12")), "batch_size": 1}, Training),
    )
    names = [f"d{number}" for number in range(size)]
    spec = FleetSpec(FLEET, "local", 0.5, tuple(DeviceSpec(name, WIDE) for name in names), folder / "fleet.yaml")
    data = prepare_data(experiment, names, folder)
    async with contextlib.AsyncExitStack() as stack:
        broker = await stack.enter_async_context(open_broker([], kinds=["mosquitto"], fleet=FLEET, devices=names))
        controller = await _controller(stack, spec, broker)
        access = {name: broker.access("127.0.0.1", name) for name in names}
        settings = [
            AgentSettings(each.host, each.port, each.username, each.password, FLEET, name, data.shards[name])
            for name, each in access.items()
        ]
        begun = time.monotonic()
        async with agents(settings) as processes:
            try:
                await _rounds(experiment, folder, controller, data, processes, begun)
            finally:
                await controller.close()


async def _rounds(
    experiment: Experiment,
    folder: Path,
    controller: FleetController,
    data: Any,
    processes: list[psutil.Process],
    begun: float,
) -> None:
    size = len(controller.names)
    await controller.membership.wait_joined(180)
    figure(f"{size} agents: seconds until all have joined", time.monotonic() - begun)
    for name in controller.names:
        await controller.put_on_limits(name, "start")
    async with TrainerProcess.started() as trainer:
        await trainer.ready()
        own = {"orchestrator": os.getpid(), "trainer": trainer.pid, "broker": controller.broker.pid()}
        parts = {name: [psutil.Process(pid)] for name, pid in own.items()} | {"agents": processes}
        costs = Costs(parts)
        request = session.Request(experiment, folder / "experiment.yaml", folder / "runs")
        (run,) = await session.run_methods(request, controller, data, Calibration((), True), costs, trainer)
    overheads = [overhead_ms(each) for each in list(timelines(sort(read(run / "records.jsonl"))))[1:]]
    figure(f"{size} agents: overhead of a round, median, ms", percentile(overheads, 0.5))
    figure(f"{size} agents: overhead of a round, 95th percentile, ms", percentile(overheads, 0.95))
    costs.show(size)


async def _controller(stack: contextlib.AsyncExitStack, spec: FleetSpec, broker: Broker) -> FleetController:
    control, data = (MqttLink(broker.address, f"{ORCHESTRATOR}-{kind}") for kind in ("control", "data"))
    controller = FleetController(
        FLEET,
        spec,
        NoBackend(Enforcement.KERNEL),
        broker,
        control,
        data,
        lambda name: load_profile(name, spec.path),
        heartbeat_s=HEARTBEAT_S,
    )
    for link in (control, data):
        await link.open()
        stack.push_async_callback(link.close)
    stack.push_async_callback(controller.endpoint.close)
    return controller


def main() -> None:
    if shutil.which("mosquitto") is None:
        skip("needs mosquitto")
        return
    for size in map(int, os.environ.get("LIGHT_SIZES", "100,300,500").split(",")):
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(measure(size, Path(folder)))
