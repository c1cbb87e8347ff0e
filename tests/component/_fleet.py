"""A whole run in one process: real agents, driver, loop and server trainer over a memory broker; only the backend,
which starts processes and limits them, is a stand-in."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch

from edge_agent.agent import Agent
from edge_agent.settings import AgentSettings, new_incarnation, presence
from edge_agent.software_throttle import SoftwareThrottle
from edge_agent.training import DeviceTrainer, warm_up
from edgebed.datasets.shard import Shard, read_shard, write_shard
from edgebed.device.core import Result
from edgebed.device.phases import PhaseLog
from edgebed.link.base import Link
from edgebed.link.endpoint import TransferEndpoint
from edgebed.link.mqtt import Address
from edgebed.methods.base import METHODS, Batch, Context, CutCost, DeviceHalf, Method, Outgoing, Trained
from edgebed.models.staged import MODELS, StagedModel, Weights, seeded
from edgebed.wire.codecs import decode_tensors, encode_tensors
from edgebed.wire.messages import Assignment, Cost, Task
from edgebed.wire.settings import Codec, LearningTask
from edgebed.wire.topics import ORCHESTRATOR, Topics
from orchestrator.experiment import Environment, Training
from orchestrator.fleet.base import Enforcement, Held
from orchestrator.fleet.control.controller import FleetController
from orchestrator.fleet.spec.profile import DeviceSpec, FleetSpec, Limits, ProfileSpec, Speed
from orchestrator.records.types import Record
from orchestrator.rounds.driver import RoundDriver
from orchestrator.rounds.driver_pool import DriverPool
from orchestrator.rounds.evaluator import LocalEvaluator
from orchestrator.rounds.frozen_base import FrozenBase
from orchestrator.rounds.loop import Loop
from orchestrator.rounds.progress import Progress
from orchestrator.rounds.replay import Replay
from orchestrator.rounds.settings import QUEUED_UPLOADS, no_costs, round_settings
from orchestrator.runs.folder import Saved
from orchestrator.training.server import ServerTrainer
from tests.all_rounds import run_all
from tests.hostile.agent import ATTACKS, Attack, Hostile
from tests.memory_link import MemoryHub, MemoryLink

R = TypeVar("R")
Connect = Callable[[str, tuple[str, bytes, bool] | None], Link]
"""Makes a link of a given name with a given last will; not open yet."""

warm_up_once = functools.cache(warm_up)

FLEET = "memory"
SHAPE, CLASSES = (1, 8, 8), 4
MODEL: dict[str, object] = {"name": "resnet-tiny", "widths": [4, 4, 8]}
WIDE = ProfileSpec("wide", Limits(cpus=1.0, uplink_bit_s=10**9, downlink_bit_s=10**9, memory_mib=256))
CPU = torch.device("cpu")


def model(seed: int = 0) -> StagedModel:
    return seeded(lambda: MODELS.create(MODEL).build(LearningTask(SHAPE, CLASSES)), seed)


def start_weights() -> Weights:
    return {name: value.clone() for name, value in model().weights().items()}


def training(**wanted: Any) -> Training:
    optimizer = {"name": "sgd", "lr": 0.05, "momentum": 0.9}
    defaults = {"rounds": 2, "batch_size": 8, "heartbeat_s": 0.1, "liveness_s": 5.0, "optimizer": optimizer, "seed": 7}
    return msgspec.convert({**defaults, **wanted}, Training)


def method(spec: Mapping[str, object] | Method, rounds: int = 0) -> Method:
    """A method of the registry, or one of the test's own, ready to plan."""
    made = spec if isinstance(spec, Method) else METHODS.create(dict(spec))
    whole = model()
    costs = {cut: CutCost(cut, 1000 * cut, 8000 // cut, 0.01 * cut, 0.01 * (8 - cut)) for cut in whole.cuts_with_head}
    made.setup(Context(MODEL, whole, costs, server_slots=1, rounds=rounds))
    return made


def write_noise_shard(path: Path, samples: int, shape: tuple[int, ...] = SHAPE) -> Shard:
    generator = torch.Generator().manual_seed(samples)
    x = torch.randint(0, 256, (samples, *shape), dtype=torch.uint8, generator=generator)
    y = torch.randint(CLASSES, (samples,), generator=generator)
    write_shard(path, x, y, [0.5] * shape[0], [0.25] * shape[0], CLASSES)
    return read_shard(path)


class NoBackend:
    """Holds every limit, in that it says so."""

    name = "memory"

    def __init__(self, enforcement: Enforcement) -> None:
        self.enforcement = enforcement

    async def prepare(self) -> list[str]:
        return []

    def host_of(self, device: str) -> str:
        return "127.0.0.1"

    def pins(self, device: str) -> bool:
        return False

    async def start(self, access: Mapping[str, Address], shards: Mapping[str, Path]) -> None: ...

    async def limit(self, device: str, limits: Limits) -> Held:
        rates = (limits.uplink_bit_s, limits.downlink_bit_s)
        return Held(device, limits, limits.cpus, *rates, limits.memory_mib, 0.0, 0.0, 0, 0.0, 0, 0, True)

    async def held(self, device: str) -> Held:
        return await self.limit(device, WIDE.limits)

    async def set_rates(self, device: str, limits: Limits) -> tuple[int, int]:
        return limits.uplink_bit_s, limits.downlink_bit_s

    async def set_link(self, device: str, up: bool) -> str:
        return "link up"

    async def set_frozen(self, device: str, frozen: bool) -> str:
        return ""

    async def set_rival(self, device: str, cpus: float) -> str:
        return ""

    async def stop(self, device: str) -> None: ...

    async def restart(self, device: str) -> None: ...

    def on_exit(self, callback: Callable[[str, str], None]) -> None: ...

    async def close(self) -> None: ...


class NoBroker:
    """Agents reach each other without one."""

    address = Address("", 0)

    def pid(self) -> int | None:
        return None

    def access(self, host: str, device: str) -> Address:
        return Address(host, 0, device, "")


NO_BROKER = NoBroker()


class Hooked(DeviceTrainer):
    """A device's trainer with a test's hand in it.

    Attributes:
        gate: training starts only when it is set.
        change: applied to the update's weights before they are encoded.
        forget_before: the round before which it loses its model.
    """

    def __init__(self, shard: Shard, phases: PhaseLog) -> None:
        super().__init__(shard, phases)
        self.gate = threading.Event()
        self.gate.set()
        self.change: Callable[[Weights], Weights] | None = None
        self.forget_before: int | None = None

    def run(self, task: Task, body: bytes | memoryview, io: Any, threads: int, cpus: float = 0.0) -> Result:
        while not self.gate.wait(0.02):
            io.check()
        if task.round == self.forget_before:
            self._built = None
        result = super().run(task, body, io, threads, cpus)
        if self.change is not None:
            result.body = encode_tensors(self.change(decode_tensors(result.body)), Codec())
        return result


class Fleet:
    """What a test may look at and touch."""

    def __init__(
        self, controller: FleetController, hub: MemoryHub, connect: Connect, endpoint: TransferEndpoint
    ) -> None:
        self.controller, self.hub, self.connect, self.endpoint = controller, hub, connect, endpoint
        self.trainers: dict[str, Hooked] = {}
        self.agents: dict[str, Agent] = {}
        self.data: dict[str, Any] = {}  # links, by device
        self.shards: dict[str, Shard] = {}
        self.records: list[Record] = []
        self.saved: list[Weights] = []
        self.checkpoint: Saved | None = None  # the last one
        self.changed = asyncio.Event()

    def record(self, record: Record) -> None:
        self.records.append(record)
        self.changed.set()

    def of(self, kind: type[R]) -> list[R]:
        return [record for record in self.records if isinstance(record, kind)]

    async def expect(self, kind: type[R], true: Callable[[R], bool] = lambda record: True) -> R:
        """The first record of `kind` for which `true` holds, when it comes."""
        async with asyncio.timeout(60):
            while True:
                for record in self.of(kind):
                    if true(record):
                        return record
                self.changed.clear()
                await self.changed.wait()

    def _save(self, weights: Weights, progress: Progress, tensors: Weights, in_hand: Weights) -> None:
        self.saved.append({name: value.clone() for name, value in weights.items()})
        self.checkpoint = copy.deepcopy(Saved(weights, progress, tensors))

    async def play(
        self,
        spec: Mapping[str, object] | Method,
        wanted: Training,
        environment: Environment | None = None,
        slots: int = 1,
        *,
        queued_uploads: int = QUEUED_UPLOADS,
        saved: Saved | None = None,
        replay: Replay | None = None,
        costs: Callable[[str, Assignment], dict[str, Cost]] = no_costs,
    ) -> Weights:
        """One run on this fleet, from the start or from a checkpoint; the weights at its end."""
        begun = method(spec, wanted.rounds)
        if saved is not None:
            begun.restore(saved.progress.method, saved.tensors)
        saved = saved or Saved(start_weights(), Progress(), {})
        samples = {name: shard.samples for name, shard in self.shards.items()}
        settings = msgspec.structs.replace(
            round_settings("run", wanted, 1.0, samples),
            queued_uploads=queued_uploads,
            costs=costs,
            earned=self.controller.earned,
            limits=self.controller.limits,
            base=FrozenBase(begun.context.model),
        )
        trainers: list[ServerTrainer] = []

        def make_trainer() -> ServerTrainer:
            trainers.append(ServerTrainer(CPU, slots=slots))
            return trainers[-1]

        driver = DriverPool(
            make_trainer,
            lambda trainer, job: RoundDriver(self.endpoint, trainer, self.record, self.controller.lost, settings, job),
            self.controller,
        )
        self.controller.attach(self.record)
        x = torch.zeros(2, *SHAPE)
        loop = Loop(
            method=begun,
            pool=driver,
            devices=self.controller,
            training=wanted,
            environment=environment,
            evaluator=LocalEvaluator(CPU),
            test=(x, torch.tensor([0, 1])),
            save=self._save,
            record=self.record,
            watch=lambda progress, result, seconds: None,
            replay=replay,
        )
        try:
            async with asyncio.timeout(120):
                await run_all(loop, saved.weights, saved.progress)
            await self.controller.membership.flush()
        finally:
            self.controller.attach(None)
            for trainer in trainers:
                await trainer.close()
        return self.saved[-1]


@contextlib.asynccontextmanager
async def fleet(
    folder: Path,
    devices: Mapping[str, int],
    *,
    hub: MemoryHub | None = None,
    profiles: Mapping[str, ProfileSpec] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    enforcement: Enforcement = Enforcement.KERNEL,
    heartbeat_s: float = 0.1,
    connect: Connect | None = None,
    hostile: str = "",
    attacks: Mapping[str, Attack] = ATTACKS,
    speed: Speed | None = None,
) -> AsyncIterator[Fleet]:
    """Agents named in `devices` (name -> samples) that have joined and have their settings; one may be `hostile`, with
    these `attacks`. They meet over `hub`, or over the links that `connect` makes. With `speed` they are paced by it."""
    warm_up_once()
    hub = hub or MemoryHub()
    connect = connect or (lambda name, will: MemoryLink(hub, will=will))
    specs = tuple(DeviceSpec(name, (profiles or {}).get(name, WIDE)) for name in devices)
    spec = FleetSpec(FLEET, "local", 0.5, specs, folder / "fleet.yaml", speed=speed or Speed())
    control, data = connect(f"{ORCHESTRATOR}-control", None), connect(f"{ORCHESTRATOR}-data", None)
    controller = FleetController(
        FLEET,
        spec,
        NoBackend(enforcement),
        NO_BROKER,
        control,
        data,
        lambda name: (profiles or {})[name],
        heartbeat_s=heartbeat_s,
        grain="quota" if speed is None else "pacing",
        chunk_bytes=8192,
    )
    made = Fleet(controller, hub, connect, controller.endpoint)
    await control.open()
    await data.open()
    agents = []
    for name, samples in devices.items():
        path = folder / f"{name}.safetensors"
        made.shards[name] = write_noise_shard(path, samples, (shapes or {}).get(name, SHAPE))
        settings = AgentSettings("", 0, "", "", FLEET, name, path)
        agent = _hostile(made, settings, attacks) if name == hostile else make_agent(made, settings)
        agents.append(asyncio.create_task(agent.run()))
    try:
        await controller.membership.wait_joined(60)
        for name in devices:
            await controller.put_on_limits(name, "start")
        yield made
    finally:
        for hooked in made.trainers.values():
            hooked.gate.set()
        await controller.close()
        await asyncio.wait_for(asyncio.gather(*agents), 60)
        await controller.endpoint.close()
        await data.close()
        await control.close()


def make_agent(made: Fleet, settings: AgentSettings) -> Agent:
    """A real agent, its trainer within the test's reach."""
    incarnation = new_incarnation()
    will = (Topics(FLEET).state(settings.device), presence(settings, incarnation, False), True)
    throttle = SoftwareThrottle()
    control = made.connect(f"{settings.device}-control", will)
    data = made.data[settings.device] = made.connect(f"{settings.device}-data", None)

    def make_trainer(shard: Shard, phases: PhaseLog) -> Hooked:
        hooked = made.trainers[settings.device] = Hooked(shard, phases)
        return hooked

    agent = Agent(settings, incarnation, control, throttle.link(data), throttle, make_trainer)
    made.agents[settings.device] = agent
    return agent


def buggy(device: str, inner: DeviceHalf) -> DeviceHalf:
    """The half, which on `device` raises a KeyError where it should end."""

    def half(
        model: StagedModel, assignment: Assignment, batches: Iterable[Batch]
    ) -> Generator[Outgoing, Weights | None, Trained]:
        trained = yield from inner(model, assignment, batches)
        if assignment.device == device:
            raise KeyError("a bug")
        return trained

    return half


def _hostile(made: Fleet, settings: AgentSettings, attacks: Mapping[str, Attack]) -> Hostile:
    data = made.data[settings.device] = made.connect(f"{settings.device}-data", None)
    control = made.connect(f"{settings.device}-control", None)
    return Hostile(settings, new_incarnation(), control, data, names=2000, attacks=attacks)
