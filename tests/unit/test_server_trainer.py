"""The server trainer: order, groups, lost devices, damage that stays where it is."""

from __future__ import annotations

import asyncio
import itertools
import math
import threading
from collections.abc import AsyncIterator, Mapping

import pytest
import torch

from edgebed.errors import DivergedError, RunError
from edgebed.methods.base import ServerHalf
from edgebed.methods.parts.local_training import UpperHalf
from edgebed.models.staged import Weights
from edgebed.wire.messages import Assignment
from orchestrator.testing.rounds import CLASSES, CPU, SHAPE, small_model
from orchestrator.training.server import ServerTrainer, StepResult


class Recorder(ServerHalf):
    """Writes down what it was given and replies with it."""

    def __init__(self, *devices: str) -> None:
        self.devices = devices
        self.steps: list[dict[str, float]] = []
        self.hold: threading.Event | None = None
        self.stepping = threading.Event()
        self.final = 1.0

    def step(self, uploads: Mapping[str, Weights]) -> Mapping[str, Weights]:
        self.stepping.set()
        if self.hold is not None:
            assert self.hold.wait(10)
        self.steps.append({device: tensors["v"].item() for device, tensors in uploads.items()})
        if any(value == 666 for value in self.steps[-1].values()):
            raise ValueError("shapes do not fit")
        return {device: {"gradient": tensors["v"]} for device, tensors in uploads.items()}

    def weights(self) -> Weights:
        return {"w": torch.tensor(self.final)}


@pytest.fixture
async def trainer() -> AsyncIterator[ServerTrainer]:
    trainer = ServerTrainer(CPU, slots=2)
    async with asyncio.timeout(20):
        yield trainer
    await trainer.close()


def value(number: float) -> Weights:
    return {"v": torch.tensor(float(number))}


def submit(trainer: ServerTrainer, device: str, *batches: int) -> list[asyncio.Task[StepResult | None]]:
    """Hand over batches whose value is their number."""
    return [asyncio.create_task(trainer.submit(device, batch, value(batch))) for batch in batches]


async def settle() -> None:
    """Let the loop run until the checks of uploads, which are made on threads, have come back."""
    await asyncio.get_running_loop().run_in_executor(None, lambda: None)
    for _ in range(20):
        await asyncio.to_thread(lambda: None)


async def test_steps_in_the_order_of_batches_whatever_the_order_of_arrival(trainer: ServerTrainer) -> None:
    for order in itertools.permutations(range(3)):
        half = Recorder("a")
        trainer.begin([half])
        results = await asyncio.gather(*submit(trainer, "a", *order))
        assert [step["a"] for step in half.steps] == [0, 1, 2]
        for batch, result in zip(order, results, strict=True):
            assert result is not None
            assert (result.batch, result.devices, result.replies["gradient"].item()) == (batch, ("a",), batch)
            assert result.start_ns <= result.end_ns
        assert (await trainer.finish("a", 3))["w"].item() == 1.0


async def test_a_repeated_upload_changes_nothing(trainer: ServerTrainer) -> None:
    half = Recorder("a")
    trainer.begin([half])
    first, again = await asyncio.gather(*submit(trainer, "a", 0, 0))
    assert [result is None for result in (first, again)].count(True) == 1
    assert await trainer.submit("a", 0, value(5)) is None
    assert half.steps == [{"a": 0}]


async def test_a_foreign_device_gets_nothing(trainer: ServerTrainer) -> None:
    trainer.begin([Recorder("a")])
    assert await trainer.submit("b", 0, value(0)) is None
    assert await trainer.finish("b", 0) == {}
    assert trainer.busy_s("b") == 0.0
    trainer.drop("b")


async def test_finish_waits_for_every_batch(trainer: ServerTrainer) -> None:
    half = Recorder("a")
    trainer.begin([half])
    finish = asyncio.create_task(trainer.finish("a", 2))
    await asyncio.gather(*submit(trainer, "a", 0))
    await settle()
    assert not finish.done()
    await asyncio.gather(*submit(trainer, "a", 1))
    assert (await finish)["w"].item() == 1.0
    assert await trainer.submit("a", 2, value(2)) is None  # more than it said


async def test_uploads_beyond_the_announced_number_are_let_go(trainer: ServerTrainer) -> None:
    trainer.begin([Recorder("a")])
    early = submit(trainer, "a", 3)
    await asyncio.gather(*submit(trainer, "a", 0))
    await trainer.finish("a", 1)
    assert await asyncio.gather(*early) == [None]


async def test_a_group_steps_when_all_its_devices_are_there(trainer: ServerTrainer) -> None:
    half = Recorder("a", "b")
    trainer.begin([half])
    first = submit(trainer, "a", 0, 1)
    await settle()
    assert half.steps == []
    await asyncio.gather(*submit(trainer, "b", 0, 1), *first)
    assert half.steps == [{"a": 0, "b": 0}, {"a": 1, "b": 1}]


async def test_a_device_with_fewer_batches_is_not_waited_for(trainer: ServerTrainer) -> None:
    half = Recorder("a", "b")
    trainer.begin([half])
    tasks = [*submit(trainer, "a", 0), *submit(trainer, "b", 0, 1)]
    short = asyncio.create_task(trainer.finish("a", 1))
    await asyncio.gather(*tasks)
    assert half.steps == [{"a": 0, "b": 0}, {"b": 1}]
    both = await asyncio.gather(short, trainer.finish("b", 2))
    assert both[0] is both[1]


async def test_a_group_goes_on_without_a_lost_device(trainer: ServerTrainer) -> None:
    half = Recorder("a", "b")
    trainer.begin([half])
    a, b = submit(trainer, "a", 0), submit(trainer, "b", 1)  # b's batch 0 never comes
    await settle()
    trainer.drop("b")
    assert (await a[0]) is not None
    assert await b[0] is None
    assert half.steps == [{"a": 0}]
    assert await trainer.submit("b", 0, value(0)) is None


async def test_a_device_may_be_dropped_while_its_step_runs(trainer: ServerTrainer) -> None:
    half = Recorder("a", "b")
    half.hold = threading.Event()
    trainer.begin([half])
    tasks = [*submit(trainer, "a", 0, 1), *submit(trainer, "b", 0)]
    assert await asyncio.to_thread(half.stepping.wait, 10)
    trainer.drop("b")
    half.hold.set()
    results = await asyncio.gather(*tasks)
    assert [result is not None for result in results] == [True, True, False]
    assert await trainer.finish("a", 2)


async def test_halves_do_not_wait_for_each_other(trainer: ServerTrainer) -> None:
    slow, quick = Recorder("slow"), Recorder("quick")
    slow.hold = threading.Event()
    trainer.begin([slow, quick])
    blocked = submit(trainer, "slow", 0)
    await asyncio.gather(*submit(trainer, "quick", 0, 1))
    assert (slow.steps, len(quick.steps)) == ([], 2)
    slow.hold.set()
    await asyncio.gather(*blocked)


async def test_a_new_round_ends_the_old_one(trainer: ServerTrainer) -> None:
    old, new = Recorder("a"), Recorder("a")
    old.hold = threading.Event()
    trainer.begin([old])
    tasks = submit(trainer, "a", 0, 1)
    finish = asyncio.create_task(trainer.finish("a", 2))
    assert await asyncio.to_thread(old.stepping.wait, 10)
    trainer.begin([new])
    old.hold.set()
    assert await asyncio.gather(*tasks) == [None, None]
    assert await finish == {}
    await asyncio.gather(*submit(trainer, "a", 0))
    assert new.steps == [{"a": 0}]
    assert len(old.steps) == 1


async def test_a_half_that_fails_is_named_and_the_others_go_on(trainer: ServerTrainer) -> None:
    trainer.begin([Recorder("bad"), Recorder("good")])
    with pytest.raises(RunError, match="half of bad failed: ValueError: shapes do not fit"):
        await trainer.submit("bad", 0, value(666))
    with pytest.raises(RunError):
        await trainer.submit("bad", 1, value(1))
    with pytest.raises(RunError):
        await trainer.finish("bad", 1)
    assert await trainer.submit("good", 0, value(0)) is not None
    assert await trainer.finish("good", 1)


async def test_an_upload_that_is_not_finite_costs_its_device_and_not_the_group(trainer: ServerTrainer) -> None:
    half = Recorder("a", "b")
    trainer.begin([half])
    a = submit(trainer, "a", 0)
    with pytest.raises(DivergedError, match="upload 0 of device 'b'"):
        await trainer.submit("b", 0, value(math.nan))
    assert (await a[0]) is not None
    with pytest.raises(DivergedError, match="device 'b'"):
        await trainer.finish("b", 1)
    assert await trainer.finish("a", 1)


async def test_weights_that_are_not_finite_are_noticed(trainer: ServerTrainer) -> None:
    half = Recorder("a")
    half.final = math.inf
    trainer.begin([half])
    with pytest.raises(DivergedError, match="server half of a"):
        await trainer.finish("a", 0)


async def test_real_halves_give_the_same_bits_in_every_interleaving(trainer: ServerTrainer) -> None:
    results = []
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        assignments = [Assignment(name, {}, CLASSES, SHAPE, 1, "head") for name in "abc"]
        trainer.begin([UpperHalf(small_model(), small_model().weights(), each, CPU) for each in assignments])
        jobs = [(name, batch) for name in "abc" for batch in range(4)]
        order = torch.randperm(len(jobs), generator=generator).tolist()
        await asyncio.gather(*(trainer.submit(*jobs[i], _features(*jobs[i])) for i in order))
        results.append([await trainer.finish(name, 4) for name in "abc"])
        assert trainer.busy_s("a") > 0
    for other in results[1:]:
        for left, right in zip(results[0], other, strict=True):
            assert all(torch.equal(left[name], right[name]) for name in left)


def _features(device: str, batch: int) -> Weights:
    generator = torch.Generator().manual_seed(ord(device) * 100 + batch)
    return {"features": torch.rand(4, 3, 6, 6, generator=generator), "labels": torch.arange(4)}
