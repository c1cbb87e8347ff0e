"""Plays rounds of any method in one process without a network: real halves, real server trainer, coroutines as devices.

What crosses the wire in a run crosses nothing here, but the order of things is drawn from a seed, so a test can play
the same round in many orders of arrival.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import Any

import torch
from torch import nn

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
    Trained,
    find_half,
)
from edgebed.methods.merging import fault
from edgebed.models.staged import StagedModel, Weights, pooled_head, seeded
from edgebed.models.width import narrow_model
from edgebed.wire.messages import Assignment, Codec, Optimizer, Report
from orchestrator.training.server import ServerTrainer

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
        return StagedModel(stages, heads, SHAPE, CLASSES)

    return seeded(build, seed)


COSTS = {
    cut: CutCost(cut, model_bytes=1000 * cut, feature_bytes=40_000 // cut, device_s=0.1 * cut, server_s=0.1 * (4 - cut))
    for cut in (1, 2, 3)
}
SCHEDULE = Schedule(BATCH, epochs=1, max_batches=0, optimizer=Optimizer("adam", 0.01), codec=Codec(), seed=7)


def make_method(name: str, **options: Any) -> Method:
    method = METHODS.create({"name": name, **options})
    method.setup(Context({"name": "small"}, small_model(), COSTS, server_slots=2))
    return method


def view(name: str, samples: int = 10, cpus: float = 1.0, uplink_bit_s: int = 10_000_000) -> DeviceView:
    return DeviceView(name, samples, cpus, uplink_bit_s, uplink_bit_s)


def shard(device: str, samples: int = 10) -> Batch:
    """A device's data, from its name."""
    generator = torch.Generator().manual_seed(sum(device.encode()))
    x = torch.randn(samples, *SHAPE, generator=generator)
    return x, torch.randint(CLASSES, (samples,), generator=generator)


def batches_of(data: Batch, assignment: Assignment) -> Iterator[Batch]:
    """Mini-batches in the order that the assignment's seed fixes."""
    return islice(_epochs(data, assignment), assignment.steps or None)


def _epochs(data: Batch, assignment: Assignment) -> Iterator[Batch]:
    x, y = data
    generator = torch.Generator().manual_seed(assignment.seed)
    for _ in range(assignment.steps or assignment.epochs):
        order = torch.randperm(len(y), generator=generator)
        starts = range(0, len(y), assignment.batch_size)
        for start in islice(starts, assignment.max_batches or None):
            chosen = order[start : start + assignment.batch_size]
            yield x[chosen], y[chosen]


async def play(
    method: Method,
    weights: Weights,
    devices: Mapping[str, int],
    rounds: Iterator[int] | range,
    *,
    order: int = 0,
    lost: Collection[str] = (),
) -> Weights:
    """`rounds` rounds on `devices` (name -> samples); the weights after them. Lanes take turns.

    Args:
        order: seed of the order in which uploads arrive and updates end.
        lost: devices that fall silent after their first batch, in every round.
    """
    trainer = ServerTrainer(CPU, slots=2)
    try:
        for number in rounds:
            present = [view(name, samples) for name, samples in sorted(devices.items())]
            lanes = [lane for lane in method.lanes(present).values() if lane]
            views = method.draw(number, lanes[number % len(lanes)], 1.0, SCHEDULE.seed)
            plan = method.plan(number, views, SCHEDULE)
            weights = await _play_round(method, weights, plan, devices, number, trainer, random.Random(order), lost)
    finally:
        await trainer.close()
    return weights


async def _play_round(
    method: Method,
    weights: Weights,
    plan: Plan,
    devices: Mapping[str, int],
    number: int,
    trainer: ServerTrainer,
    chance: random.Random,
    lost: Collection[str],
) -> Weights:
    trainer.begin(method.server_halves(weights, plan.assignments, CPU))
    players = [
        _Player(method, weights, assignment, devices[name], trainer, chance, name in lost)
        for name, assignment in sorted(plan.assignments.items(), key=lambda _: chance.random())
    ]
    async with asyncio.timeout(60):
        done = [each for each in await asyncio.gather(*(player.run() for player in players)) if each is not None]
    done.sort(key=lambda pair: pair[0].device)
    if not done:
        return weights
    merged = method.merge(weights, [contribution for contribution, _ in done])
    method.observe(number, [outcome for _, outcome in done])
    return merged


class _Player:
    """One device in one round."""

    def __init__(
        self,
        method: Method,
        weights: Weights,
        assignment: Assignment,
        samples: int,
        trainer: ServerTrainer,
        chance: random.Random,
        lost: bool,
    ) -> None:
        self.method, self.assignment, self.samples, self.reference = method, assignment, samples, weights
        self.trainer, self.chance, self.lost = trainer, chance, lost
        self.model = small_model(seed=99)  # what a fresh agent holds before the task's weights come
        if assignment.keep:
            self.model = narrow_model(self.model, assignment.keep)
        self.model.load(method.task_weights(weights, assignment))

    async def run(self) -> tuple[Contribution, Outcome] | None:
        device = self.assignment.device
        batches = batches_of(shard(device, self.samples), self.assignment)
        half = find_half(self.assignment.objective)(self.model, self.assignment, batches)
        uploads: list[asyncio.Task[Any]] = []
        reply: Weights | None = None
        while True:
            try:
                out = half.send(reply)
            except StopIteration as stop:
                trained: Trained = stop.value
                break
            tensors = {name: value.clone() for name, value in out.tensors.items()}
            uploads.append(asyncio.create_task(self._submit(len(uploads), tensors)))
            reply = (await uploads[-1]).replies if out.wait else None
            await self._others()
            if self.lost:
                break
        if self.lost:
            self.trainer.drop(device)
            await asyncio.gather(*uploads)
            return None
        await asyncio.gather(*uploads)
        return await self._done(trained, len(uploads))

    async def _done(self, trained: Trained, uploads: int) -> tuple[Contribution, Outcome]:
        device = self.assignment.device
        reference = {**self.reference, **self.method.task_weights(self.reference, self.assignment)}
        names = self.method.update_names(self.assignment, trained.notes)
        assert not (why := fault(reference, trained.weights, names)), why
        server = await self.trainer.finish(device, uploads)
        report = Report(
            self.samples, trained.batches, trained.loss, 0.5, 0.5, None, 100, 0.1, 100, 0.1, 0.0, notes=trained.notes
        )
        # Nothing here is taken from a clock, so that the next plan is the same in every play.
        outcome = Outcome(device, self.assignment, report, 1.0, 0.2, 1e6, 0.1 * uploads)
        return Contribution(device, self.samples, self.assignment, trained.weights, server), outcome

    async def _submit(self, batch: int, tensors: Weights) -> Any:
        await self._others()
        return await self.trainer.submit(self.assignment.device, batch, tensors)

    async def _others(self) -> None:
        """Let others go first, as often as chance says."""
        for _ in range(self.chance.randrange(6)):
            await asyncio.sleep(0)
