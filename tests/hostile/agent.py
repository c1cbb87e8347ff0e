"""An agent that means harm: it joins a fleet as one of its devices and tries one attack per round, in turn. In the
first it is honest, so that what it sends otherwise is known to be taken.

`python -m tests.hostile.agent --fleet F --device D --shard S`, broker in EDGEBED_BROKER, as `edgebed-agent`. The list
of attacks is `ATTACKS`; HOSTILE_NAMES says how many names of devices are invented.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import mmap
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import msgspec
import torch
import zstandard

from edge_agent.__main__ import settings_from
from edge_agent.settings import AgentSettings, new_incarnation, presence
from edgebed.datasets.shard import read_shard
from edgebed.device.kept import KeptStates
from edgebed.errors import TransferError
from edgebed.link.base import Link
from edgebed.link.connection import Address
from edgebed.link.endpoint import TransferEndpoint
from edgebed.link.mqtt import MqttLink
from edgebed.link.receiver import ReceivedTransfer
from edgebed.methods.base import Outgoing, Trained, find_half
from edgebed.models.staged import EXTRA, MODELS, Weights, with_prefix
from edgebed.wire.codecs import decode_tensors, encode_tensors
from edgebed.wire.frames import pack_chunk
from edgebed.wire.messages import (
    Configure,
    Control,
    Failure,
    Header,
    Ping,
    Pong,
    ProbeResult,
    Refuse,
    Report,
    Shutdown,
    Status,
    Task,
    Update,
    Upload,
    encode,
)
from edgebed.wire.piece_times import Phase
from edgebed.wire.protocol import PROTOCOL
from edgebed.wire.settings import Codec
from edgebed.wire.topics import ORCHESTRATOR, Topics

MIB = 1 << 20
ANNOUNCED = 10 << 30
SENT_MIB = 200
"""Chunks of 1 MiB that are sent of the 10 GiB announced, without a grant."""

HONEST = Report(0, 0, 0.5, 0.01, 0.01, None, 0, 0.01, 0, 0.01, 0.0)


@dataclass
class Work:
    """One task, and what an honest device would send for it."""

    task: Task
    samples: int
    sent: Weights
    uploads: list[Weights]
    trained: Trained

    def report(self, **lies: object) -> Report:
        batches = len(self.uploads) or self.trained.batches
        honest = msgspec.structs.replace(HONEST, samples=self.samples, batches=batches)
        return msgspec.structs.replace(honest, **lies)


class Hostile:
    """Args:
    control, data: its connections to the broker.
    names: how many names of devices it invents.
    attacks: one for each round; `ATTACKS` if not given.
    """

    def __init__(
        self,
        settings: AgentSettings,
        incarnation: str,
        control: Link,
        data: Link,
        names: int,
        attacks: Mapping[str, Attack] | None = None,
    ) -> None:
        self._settings, self._incarnation, self.names = settings, incarnation, names
        self._attacks, self._states = list((attacks or ATTACKS).values()), KeptStates()
        self._control, self.data = control, data
        self.device, self.topics = settings.device, Topics(settings.fleet)
        self._shard = read_shard(settings.shard)
        self._port = TransferEndpoint(
            settings.device, self.topics, control, data, deliver=self._deliver, on_control=self._hear
        )
        self._tasks: asyncio.Queue[tuple[Task, bytes]] = asyncio.Queue()
        self._configured, self._progress, self._task = -1, 0, ""
        self._over = asyncio.Event()

    async def run(self) -> None:
        self._port.start()
        await self._control.open()
        await self.data.open()
        hello = presence(self._settings, self._incarnation, True, self._shard)
        self._control.publish(self.topics.state(self.device), hello, retain=True)
        jobs = [asyncio.create_task(self._beat()), asyncio.create_task(self._attack())]
        await self._over.wait()
        for job in jobs:
            job.cancel()
        await self._port.close()
        await self.data.close()
        await self._control.close()

    # ---- a device's manners ----

    async def _deliver(self, inbound: ReceivedTransfer) -> None:
        if isinstance(inbound.header, Task):
            self._tasks.put_nowait((inbound.header, bytes(inbound.body)))

    def _hear(self, peer: str, message: Control) -> None:
        match message:
            case Configure():
                self._configured = message.seq
                self._say_status()
            case Ping():
                self.notify(Pong(self.device, message.seq, message.sent_ns, time.monotonic_ns()))
            case Shutdown():
                self._over.set()
            case _:
                pass

    @property
    def incarnation(self) -> str:
        return self._incarnation

    def raw(self, payload: bytes) -> None:
        """Publish bytes where control messages go; a Presence, too, is taken from there."""
        self._control.publish(self.topics.control_from(self.device), payload)

    def notify(self, message: Control) -> None:
        self._port.control(ORCHESTRATOR, message)

    def _say_status(self) -> None:
        self._progress += 1  # always further
        phase, now = "compute", time.monotonic_ns()
        self.notify(
            Status(self.device, self._incarnation, self._configured, self._task, phase, self._progress, 0.0, now)
        )

    async def _beat(self) -> None:
        while True:
            self._say_status()
            await asyncio.sleep(0.3)  # as an honest agent's heartbeat does

    async def send(self, header: Header, body: bytes | bytearray) -> None:
        await self._port.send(ORCHESTRATOR, header, body)

    # ---- its work ----

    async def _attack(self) -> None:
        while True:
            task, body = await self._tasks.get()
            self._task = task.id
            work = await asyncio.to_thread(self._train, task, body)
            with contextlib.suppress(TransferError):
                await self._attacks[task.round % len(self._attacks)](self, work)

    def _train(self, task: Task, body: bytes) -> Work:
        torch.set_num_threads(1)
        assignment = msgspec.structs.replace(task.assignment, cpus=1.0)
        model = MODELS.create(assignment.model).build(assignment.learns)
        sent = decode_tensors(body)
        model.load({**sent, **self._states.begin(task.run, task.state or "")})
        batches = self._shard.batches(assignment.batch_size, assignment.epochs, assignment.max_batches, assignment.seed)
        half = find_half(assignment.objective)(model, assignment, batches)
        uploads: list[Weights] = []
        reply: Weights | None = None
        while True:
            try:
                out: Outgoing = half.send(reply)
            except StopIteration as stop:
                self._states.keep(task.run, task.id, stop.value.state)
                return Work(task, self._shard.samples, sent, uploads, stop.value)
            uploads.append({name: value.clone() for name, value in out.tensors.items()})
            features = out.tensors.get("features", out.tensors.get("values"))
            reply = {"gradient": torch.zeros_like(features)} if out.wait and features is not None else None

    async def uploads(self, work: Work, count: int | None = None) -> None:
        for batch, tensors in enumerate(work.uploads[:count]):
            await self.upload(work, batch, tensors)

    async def upload(self, work: Work, batch: int, tensors: Weights) -> None:
        await self.send(Upload(self.device, work.task.id, batch, 1), encode_tensors(tensors, Codec()))

    async def update(self, work: Work, change: Callable[[Weights], Weights] = dict, **lies: object) -> None:
        """All honest uploads, and an update with a lie."""
        await self.uploads(work)
        header = Update(self.device, work.task.id, work.report(**lies))
        tensors = {**work.trained.weights, **with_prefix(work.trained.extra, EXTRA)}
        await self.send(header, encode_tensors(change(tensors), Codec()))


# ---- the attacks ----

Attack = Callable[[Hostile, Work], Awaitable[None]]


def lie(**lies: object) -> Attack:
    return lambda agent, work: agent.update(work, **lies)


def changed(change: Callable[[Weights], Weights]) -> Attack:
    return lambda agent, work: agent.update(work, change)


def first_upload(change: Callable[[Weights], Weights]) -> Attack:
    return lambda agent, work: agent.upload(work, 0, change(work.uploads[0]))


def raw_upload(make: Callable[[], bytes]) -> Attack:
    return lambda agent, work: agent.send(Upload(agent.device, work.task.id, 0, 1), make())


def one(wanted: str, value: float) -> Callable[[Weights], Weights]:
    """The first tensor of that kind, with one number changed."""

    def change(weights: Weights) -> Weights:
        name = next(name for name in weights if name.endswith(wanted))
        tensor = weights[name].clone()
        tensor.view(-1)[0] = value
        return {**weights, name: tensor}

    return change


def scaled(factor: float) -> Callable[[Weights], Weights]:
    return lambda weights: {n: v * factor if v.is_floating_point() else v for n, v in weights.items()}


def filled(value: float) -> Callable[[Weights], Weights]:
    return lambda weights: {n: torch.full_like(v, value) if v.is_floating_point() else v for n, v in weights.items()}


def giant_shape(dimensions: int) -> bytes:
    entry = {"dtype": "F32", "shape": [2**62] * dimensions, "data_offsets": [0, 4]}
    header = json.dumps({"features": entry}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(4)


def bomb() -> bytes:
    """200 MiB of zeros in 6 KB."""
    compressor = zstandard.ZstdCompressor(level=1).compressobj(size=200 * MIB)
    zeros = bytes(MIB)
    return b"".join([*(compressor.compress(zeros) for _ in range(200)), compressor.flush()])


async def announced(agent: Hostile, work: Work) -> None:
    """10 GiB announced; chunks are sent whether they are wanted or not."""
    header = encode(Upload(agent.device, work.task.id, 0, 1))
    with mmap.mmap(-1, ANNOUNCED, prot=mmap.PROT_READ) as zeros, memoryview(zeros) as body:
        for index in range(SENT_MIB):
            frame = pack_chunk("announced", "", index, header, body, MIB)
            agent.data.publish(agent.topics.data_from(agent.device), frame)
            await asyncio.sleep(0)  # lets its heartbeats go on


async def names(agent: Hostile, work: Work) -> None:
    """Chunks and heartbeats of devices that are none; then it gives up, so that the round may end."""
    frame = pack_chunk("names", "", 0, encode(Upload("x", "t", 0, 1)), memoryview(b""), MIB)
    for number in range(agent.names):
        agent.data.publish(agent.topics.data_from(f"invented-{number}"), frame)
        if number % 500 == 0:
            await asyncio.sleep(0.02)
    await agent.send(Failure(agent.device, work.task.id, f"{agent.names} names invented"), b"")


async def twice(agent: Hostile, work: Work) -> None:
    await agent.upload(work, 0, work.uploads[0])
    await agent.upload(work, 0, work.uploads[0])


async def endless(agent: Hostile, work: Work) -> None:
    """Its heartbeats go on, each further than the one before."""


def publishes(make: Callable[[Hostile], list[bytes]], said: str) -> Attack:
    """Raw control messages; then it gives up, so that the round may end."""

    async def attack(agent: Hostile, work: Work) -> None:
        for payload in make(agent):
            agent.raw(payload)
            await asyncio.sleep(0)  # lets its heartbeats go on
        await agent.send(Failure(agent.device, work.task.id, said), b"")

    return attack


def statuses(agent: Hostile) -> list[bytes]:
    """6 MiB each: phases by the hundred thousand, and a task with a very long name."""
    phase = Phase("x", "t", 0, 1)
    honest = Status(agent.device, agent.incarnation, 0, "t", "compute", 1, 0.0, 0)
    return [
        encode(msgspec.structs.replace(honest, phases=(phase,) * 400_000)),
        encode(msgspec.structs.replace(honest, task="t" * (6 * MIB))),
    ]


def filling(agent: Hostile) -> list[bytes]:
    """40 MiB of phases, in messages that are each as long as they may be."""
    phases = (Phase("x" * 400, "t" * 400, 0, 1),) * 70
    honest = Status(agent.device, agent.incarnation, 0, "t", "compute", 1, 0.0, 0, phases)
    return [encode(msgspec.structs.replace(honest, first_phase=n)) for n in range(0, 50_000, 70)]


def presences(agent: Hostile) -> list[bytes]:
    """Facts of 6 MiB, and agents with names of 4 MiB."""
    wide = {"device": agent.device, "online": True, "protocol": PROTOCOL, "type": "presence"}
    facts = [{**wide, "incarnation": "i", "host": {"kernel": "k" * (6 * MIB)}}]
    names = [{**wide, "incarnation": f"{number}" + "i" * (4 * MIB)} for number in range(6)]
    return [msgspec.msgpack.encode(each) for each in [*facts, *names]]


def answers(agent: Hostile) -> list[bytes]:
    why = "w" * (6 * MIB)
    return [encode(Refuse(agent.device, ORCHESTRATOR, "t" * MIB, "")), encode(ProbeResult(agent.device, why))]


TERMINAL = "\x1b]52;c;ZXZpbA==\x1b\\\x1b[2K\x1b[32mall is well\u202e"

ATTACKS: dict[str, Attack] = {
    "none, the first round": lie(),
    "samples 10^12": lie(samples=10**12),
    "samples 0": lie(samples=0),
    "samples -5": lie(samples=-5),
    "batches 2^40": lie(batches=2**40),
    "seconds not a number": lie(compute_s=math.nan),
    "giant shape": raw_upload(lambda: giant_shape(85_000)),
    "giant shape, small": raw_upload(lambda: giant_shape(300)),
    "decompression bomb": raw_upload(bomb),
    "10 GiB announced": announced,
    "names invented": names,
    "upload out of range": lambda agent, work: agent.upload(work, 10**6, work.uploads[0]),
    "upload twice": twice,
    "features misshapen": first_upload(lambda t: {**t, "features": t["features"][:, :1]}),
    "a batch of one sample": first_upload(lambda t: {name: value[:1] for name, value in t.items()}),
    "labels out of range": first_upload(lambda t: {**t, "labels": t["labels"] + 1000}),
    "features 1e25 in the shared half": first_upload(lambda t: {**t, "features": t["features"] * 1e25}),
    "features not a number": first_upload(lambda t: {**t, "features": t["features"] * math.nan}),
    "weights not a number": changed(scaled(math.nan)),
    "finite poison 1e30": changed(one("weight", 1e30)),
    "finite poison, times 1e6": changed(scaled(1e6)),
    "running_var -1": changed(one("running_var", -1.0)),
    "num_batches_tracked 2^62": changed(one("num_batches_tracked", 2**62)),
    "a reason of 800 kB": lambda agent, work: agent.send(Failure(agent.device, work.task.id, "why " * 200_000), b""),
    "poison 9e17 in all weights": changed(filled(9e17)),
    "10000 notes": lie(notes={str(number): 1.0 for number in range(10_000)}),
    "a note that a terminal obeys": lie(notes={TERMINAL: 1.0}),
    "a control message of 6 MiB": publishes(statuses, "long statuses sent"),
    "40 MiB of phases": publishes(filling, "phases sent"),
    "facts of 6 MiB, names of 4 MiB": publishes(presences, "presences sent"),
    "answers of 6 MiB": publishes(answers, "answers sent"),
    "text that a terminal obeys": lambda agent, work: agent.send(Failure(agent.device, work.task.id, TERMINAL), b""),
    "progress for ever": endless,
}


SAID = {
    "none, the first round": "",
    "samples 10^12": "reports 1000000000000 samples",
    "samples 0": "reports 0 samples",
    "samples -5": "reports -5 samples",
    "batches 2^40": "reports 1099511627776 batches",
    "seconds not a number": "compute_s = nan",
    "giant shape": "has at most",
    "giant shape, small": "impossible dtype, shape or place",
    "decompression bomb": "would unpack to",
    "10 GiB announced": "upload 0 has 10737418240 bytes",
    "names invented": "names invented",
    "upload out of range": "upload 1000000",
    "upload twice": "upload 0; 1 was the next",
    "features misshapen": "features is torch.float32",
    "a batch of one sample": "of 1 samples, its batch is of",
    "labels out of range": "label outside",
    "features 1e25 in the shared half": "training diverged",
    "features not a number": "not finite",
    "weights not a number": "not finite",
    "finite poison 1e30": "1e+30",
    "finite poison, times 1e6": "max_update_norm",
    "running_var -1": "variance of -1",
    "num_batches_tracked 2^62": "num_batches_tracked",
    "a reason of 800 kB": "why why",
    "poison 9e17 in all weights": "max_update_norm",
    "10000 notes": "reports 10000 notes",
    "a note that a terminal obeys": "reports 1 notes",
    "a control message of 6 MiB": "long statuses sent",
    "40 MiB of phases": "phases sent",
    "facts of 6 MiB, names of 4 MiB": "presences sent",
    "answers of 6 MiB": "answers sent",
    "text that a terminal obeys": "all is well",
    "progress for ever": "ceiling",
}
"""What the records say of each attack, in part."""


async def main(arguments: list[str]) -> None:
    settings, incarnation = settings_from(arguments), new_incarnation()
    address = Address(settings.host, settings.port, settings.username, settings.password)
    will = (Topics(settings.fleet).state(settings.device), presence(settings, incarnation, False), True)
    client = f"{settings.fleet}-{settings.device}-hostile"
    control, data = MqttLink(address, f"{client}-control", will=will), MqttLink(address, f"{client}-data")
    names = int(os.environ.get("HOSTILE_NAMES", "5000"))
    await Hostile(settings, incarnation, control, data, names).run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
