"""Plays rounds of any method in one process without a network: real halves, real server trainer, coroutines as devices.

What crosses the wire in a run crosses nothing here, but the order of things is drawn from a seed, so a test can play
the same round in many orders of arrival. Nothing is taken from a clock: what a device measures follows from its work.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import json
import random
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec
import torch
from torch import nn

from edgebed.datasets.shard import NOTHING_HIDDEN, About, Shard
from edgebed.device.batches import Batches, ShardBatches
from edgebed.device.core import (
    AwaitReply,
    Body,
    Result,
    SendUpload,
    begin_half,
    complete_assignment,
    run_task,
)
from edgebed.device.phases import PhaseLog
from edgebed.errors import UsageError
from edgebed.methods.base import (
    METHODS,
    Batch,
    Context,
    Contribution,
    CutCost,
    DeviceView,
    Method,
    Outcome,
    Plan,
    Schedule,
    ServerHalf,
)
from edgebed.methods.parts.local_training import Half
from edgebed.models.staged import StagedModel, Weights, pooled_head, seeded
from edgebed.timeouts import timeout
from edgebed.wire.codecs import decode_tensors, encode_tensors
from edgebed.wire.messages import Assignment, Report, Task
from edgebed.wire.settings import Codec, LearningTask, Optimizer, Privacy
from orchestrator.rounds.checks import opened
from orchestrator.rounds.device_states import sent_state
from orchestrator.testing.agents import Agents
from orchestrator.testing.log import Log
from orchestrator.training.copies import copy_of, from_copy
from orchestrator.training.server import ServerTrainer, StepResult

CPU = torch.device("cpu")
SHAPE, CLASSES, BATCH = (1, 6, 6), 4, 4
WIDTHS = (3, 4, 5)


def small_model(seed: int = 0) -> StagedModel:
    """Three convolutions with batch norm and a classifier: four stages, heads at cuts 1..3."""

    def build() -> StagedModel:
        stages: list[tuple[str, nn.Module]] = []
        before = SHAPE[0]
        for number, width in enumerate(WIDTHS, 1):
            convolution = nn.Conv2d(before, width, 3, padding=1)
            layers = OrderedDict(conv=convolution, norm=nn.BatchNorm2d(width), relu=nn.ReLU())
            stages.append((f"md{number}", nn.Sequential(layers)))
            before = width
        stages.append((f"md{len(WIDTHS) + 1}", pooled_head(before, CLASSES)))
        heads = {cut: pooled_head(width, CLASSES) for cut, width in enumerate(WIDTHS, 1)}
        return StagedModel(stages, heads, LearningTask(SHAPE, CLASSES))

    return seeded(build, seed)


COSTS = {
    cut: CutCost(cut, model_bytes=1000 * cut, feature_bytes=40_000 // cut, device_s=0.1 * cut, server_s=0.1 * (4 - cut))
    for cut in (1, 2, 3)
}
SCHEDULE = Schedule(BATCH, epochs=1, max_batches=0, optimizer=Optimizer("adam", 0.01), codec=Codec(), seed=7)

PLAIN = msgspec.structs.replace(SCHEDULE, optimizer=Optimizer("sgd", 0.05))


def schedule_for(method: Method) -> Schedule:
    """SCHEDULE; with plain SGD for a method that refuses its Adam."""
    try:
        method.check_schedule(SCHEDULE)
    except UsageError:
        return PLAIN
    return SCHEDULE


def make_method(name: str, **options: Any) -> Method:
    """A method of the small model, set up: a copy, because counting the costs of narrow models takes up to 0.2 s."""
    return copy.deepcopy(_set_up(json.dumps({"name": name, **options})))


@functools.cache
def _set_up(options: str) -> Method:
    method = METHODS.create(json.loads(options))
    method.setup(Context({"name": "small"}, small_model(), COSTS, server_slots=2))
    return method


CPUS = {"a": 1.0, "b": 0.5, "c": 0.2}
"""Of the devices that are played; 1 where a name is not here."""


def view(name: str, samples: int = 10, cpus: float = 1.0, uplink_bit_s: int = 10_000_000) -> DeviceView:
    return DeviceView(name, samples, cpus, uplink_bit_s, uplink_bit_s)


Shards = Callable[[str, int], Batch]


def shard(device: str, samples: int = 10) -> Batch:
    """A device's data, from its name."""
    generator = torch.Generator().manual_seed(sum(device.encode()))
    x = torch.randn(samples, *SHAPE, generator=generator)
    return x, torch.randint(CLASSES, (samples,), generator=generator)


def one_class(device: str, samples: int = 10) -> Batch:
    """As `shard`, but all samples of a device have one class; those of `a` the first, of `b` the second."""
    x, y = shard(device, samples)
    return x, torch.full_like(y, (ord(device[0]) - ord("a")) % CLASSES)


def labelled(device: DeviceView, shards: Shards = shard) -> DeviceView:
    """With the labels of its shard, as its Presence tells them."""
    counts = torch.bincount(shards(device.name, device.samples)[1], minlength=CLASSES)
    return msgspec.structs.replace(device, labels=tuple(int(count) for count in counts))


def as_shard(data: Batch, privacy: Privacy = NOTHING_HIDDEN) -> Shard:
    """As a device holds them; neither scaled nor normalised further."""
    return Shard(*data, About(1, (0.0,), (1.0,), CLASSES, privacy), "")


def batches_of(data: Batch, assignment: Assignment) -> Iterator[Batch]:
    """Mini-batches in the order that the assignment's seed fixes."""
    return iter(ShardBatches(as_shard(data), assignment))


def work_s(cpus: float, batches: int, stages: int) -> float:
    """Seconds of a device's work: slow devices are slower than they declare, so that measuring them changes plans."""
    return 0.1 * batches * stages / cpus**2


class Step(Enum):
    """When a device that is lost falls silent."""

    BEFORE = "before it sends anything"
    SENT = "after its first upload, used or not"
    USED = "after its first upload has been used"
    TRAINED = "after all are used, before its update"


EVERY = (Step.SENT, Step.USED, Step.TRAINED)


async def play(
    method: Method,
    weights: Weights,
    devices: Mapping[str, int],
    rounds: Iterator[int] | range,
    *,
    order: int = 0,
    away: Mapping[int, Collection[str]] | None = None,
    lost: Collection[str] = (),
    moments: Sequence[Step] = EVERY,
    moments_shared: Sequence[Step] = EVERY,
    log: Log | None = None,
    agents: Agents | None = None,
    restarts: Collection[str] = (),
    schedule: Schedule | None = None,
    shards: Shards = shard,
) -> Weights:
    """`rounds` rounds on `devices` (name -> samples); the weights after them. Where a method has several lanes, each
    has a round of its own, and the rounds begin together and end one after another.

    Every device that is not lost has all its uploads used and its work merged, or this fails.

    Args:
        order: seed of the order in which uploads arrive and updates end.
        away: devices that are not there, by round.
        lost: devices that fall silent in every round, in round n at the n-th of `moments`, counted round; where a
            server half is theirs together with others, of `moments_shared`.
        agents: those of an earlier play that goes on.
        restarts: devices whose agents are started again before every round.
        schedule: of all rounds; None: as `schedule_for` says.
        shards: what devices hold, by name and number of samples.
    """
    agents = agents or Agents()
    trainer = ServerTrainer(CPU, slots=2)
    try:
        for number in rounds:
            present = [
                labelled(view(name, samples, CPUS.get(name, 1.0)), shards)
                for name, samples in sorted(devices.items())
                if name not in (away or {}).get(number, ())
            ]
            silent = _silent(number, lost, moments, moments_shared)
            agents.restart(restarts)
            base = weights
            for plan_number, plan in _plans(method, present, number, schedule or schedule_for(method)):
                round_ = _Round(method, trainer, random.Random(order), silent, log or Log(), agents, base, shards)
                weights = await round_.run(weights, plan, devices, plan_number)
    finally:
        await trainer.close()
    return weights


def _plans(method: Method, present: Sequence[DeviceView], number: int, schedule: Schedule) -> list[tuple[int, Plan]]:
    """A round of each lane, all begun with the same weights, in the order in which they end; with their numbers."""
    begun: list[tuple[int, Plan]] = []
    names, idle = list(method.lanes(present)), list(present)
    for place, lane in enumerate(names):
        if views := method.lanes(idle)[lane]:
            own = number * len(names) + place
            plan = method.plan(own, method.draw(own, views, 1.0, schedule.seed), schedule)
            begun.append((own, plan))
            idle = [view for view in idle if view.name not in plan.assignments]
    first = number % len(begun)
    return [*begun[first:], *begun[:first]]


Silent = Mapping[str, tuple[Step, Step]]
"""When a device falls silent, by device: with a server half of its own or none, and with one it shares."""


def _silent(number: int, lost: Collection[str], alone: Sequence[Step], shared: Sequence[Step]) -> Silent:
    return {device: (alone[number % len(alone)], shared[number % len(shared)]) for device in lost}


@dataclass
class _Round:
    method: Method
    trainer: ServerTrainer
    chance: random.Random
    silent: Silent
    log: Log
    agents: Agents
    base: Weights  # that the round began with
    shards: Shards

    async def run(self, weights: Weights, plan: Plan, devices: Mapping[str, int], number: int) -> Weights:
        self.log.plans.append(plan)
        copied = from_copy(copy_of(self.method, self.method.context), self.method.context)  # as in a real run
        halves = copied.server_halves(self.base, plan.assignments, CPU)
        self.log.halves += [len(half.devices) for half in halves]
        self.trainer.begin(halves)
        players = [
            _Player(self, assignment, devices[name], self._moment(name, halves), number)
            for name, assignment in sorted(plan.assignments.items(), key=lambda _: self.chance.random())
        ]
        async with timeout(60):
            done = [each for each in await asyncio.gather(*(player.run() for player in players)) if each is not None]
        done.sort(key=lambda pair: pair[0].device)
        assert [pair[0].device for pair in done] == sorted(set(plan.assignments) - set(self.silent))
        if not done:
            return weights
        for contribution, _ in done if self.method.keeps_state else ():
            device = contribution.device
            self.agents.states.took(device, f"{number}/{device}", self.agents.agent_of(device))
        self.log.origins += [contribution.state for contribution, _ in done]
        self.log.upper |= {name for contribution, _ in done for name in contribution.server_weights if name in weights}
        given = self.log.merging(weights, [contribution for contribution, _ in done])
        merged = self.method.merge(weights, given)
        assert isinstance(merged, Mapping), f"`merge` returned a {type(merged).__name__}, and no weights"
        self.log.merged(merged)
        self.method.observe(number, [outcome for _, outcome in done])
        return merged

    def _moment(self, device: str, halves: Sequence[ServerHalf]) -> Step | None:
        """When the device falls silent."""
        if device not in self.silent:
            return None
        shared = any(device in half.devices and len(half.devices) > 1 for half in halves)
        return self.silent[device][shared]


@functools.cache
def _held(device: str) -> StagedModel:
    """The model of an agent, built once, for building takes longer than a round."""
    return small_model()


@functools.cache
def _unknown() -> Weights:
    """What it holds before a task's weights come."""
    return small_model(seed=99).weights()


class _Player:
    """One device in one round: the device core, with coroutines for what crosses the link."""

    def __init__(self, round: _Round, assignment: Assignment, samples: int, moment: Step | None, number: int) -> None:
        weights = round.base
        self.method, self.trainer, self.chance, self.shards = round.method, round.trainer, round.chance, round.shards
        self.assignment, self.samples, self.reference, self.moment = assignment, samples, weights, moment
        device = assignment.device
        self.cpus, self.kept = CPUS.get(device, 1.0), round.agents.kept(device)
        expected = round.agents.states.expected(device)
        self.task = Task(f"{number}/{device}", "run", number, assignment, state=expected)
        self.origin, copy = sent_state(self.method, device, expected)
        self.body = encode_tensors({**self.method.task_weights(weights, assignment), **copy}, Codec())

    async def run(self) -> tuple[Contribution, Outcome] | None:
        device = self.assignment.device
        uploads: list[asyncio.Task[StepResult | None]] = []
        result = await self._train(uploads) if self.moment is not Step.BEFORE else None
        if self.moment is Step.TRAINED:
            await asyncio.gather(*uploads)
        if self.moment is not None or result is None:
            await self._others()
            self.trainer.drop(device)
            await asyncio.gather(*uploads)
            return None
        used = await asyncio.gather(*uploads)
        assert None not in used, f"an upload of {device} was not used"
        return await self._done(result, len(uploads))

    async def _train(self, uploads: list[asyncio.Task[StepResult | None]]) -> Result | None:
        """None where the device falls silent before its last batch."""
        shard_ = as_shard(self.shards(self.assignment.device, self.samples), self.assignment.privacy)
        filled = complete_assignment(self.assignment, self.cpus, shard_)
        phases, batches = PhaseLog(lambda: 0), ShardBatches(shard_, filled)
        steps = run_task(self.task, filled, self.body, self._begin, batches, phases, self.kept)
        answer: Body | None = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as stop:
                result: Result = stop.value
                return result
            answer = None
            match step:
                case SendUpload(_, body, wait):
                    uploads.append(asyncio.create_task(self._submit(len(uploads), decode_tensors(body))))
                    if self.moment is Step.SENT:
                        return None
                    if self.moment is Step.USED:
                        await self._used(uploads[-1])
                        return None
                    if not wait:
                        await self._others()
                case AwaitReply(number):
                    answer = encode_tensors((await self._used(uploads[number])).replies, Codec())
                    await self._others()

    def _begin(self, assignment: Assignment, body: Body, batches: Batches, kept: Weights) -> Half:
        model = _held(assignment.device)
        model.load(_unknown())
        return begin_half(model, assignment, body, batches, kept, keep=False)

    async def _used(self, upload: asyncio.Task[StepResult | None]) -> StepResult:
        result = await upload
        assert result is not None, f"an upload of {self.assignment.device} was not used"
        return result

    async def _done(self, trained: Result, uploads: int) -> tuple[Contribution, Outcome]:
        device, stages = self.assignment.device, self.assignment.stages
        reference = {**self.reference, **self.method.task_weights(self.reference, self.assignment)}
        server = await self.trainer.finish(device, uploads)
        work = work_s(self.cpus, trained.batches, stages - self.assignment.train_from)
        spent = work, work * self.cpus, None, 100, 0.1, 100, 0.1, 0.0
        report = Report(self.samples, trained.batches, trained.loss, *spent, notes=trained.notes)
        weights, extra = opened(self.method, reference, self.assignment, report, decode_tensors(trained.body))
        outcome = Outcome(device, self.assignment, report, work + 0.2, 0.2, 1e6, 0.1 * uploads)
        given = device, self.samples, self.assignment, weights, server, extra
        return Contribution(*given, report, self.reference, self.origin), outcome

    async def _submit(self, batch: int, tensors: Weights) -> StepResult | None:
        await self._others()
        return await self.trainer.submit(self.assignment.device, batch, tensors)

    async def _others(self) -> None:
        """Let others go first, as often as chance says."""
        for _ in range(self.chance.randrange(6)):
            await asyncio.sleep(0)
