"""Rounds that follow one another share a trainer; rounds at the same time have one each, and no device in common."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from edgebed.errors import RunError
from orchestrator.fleet.control.run_fleet import RunFleet
from orchestrator.rounds.driver_pool import DriverPool


class StandInFleet:
    """Who drives which device."""

    driven = RunFleet.driven

    def __init__(self) -> None:
        self.drivers: dict[str, Any] = {}


class HeldDriver:
    """A round that lasts until it is let go."""

    def __init__(self, trainer: int) -> None:
        self.trainer, self.go = trainer, asyncio.Event()

    async def run(self) -> int:
        await self.go.wait()
        return self.trainer


class Pool:
    def __init__(self) -> None:
        self.fleet, self.trainers, self.begun = StandInFleet(), 0, list[HeldDriver]()
        self.pool = DriverPool(self._make_trainer, self._make_driver, self.fleet)  # type: ignore[arg-type]

    def _make_trainer(self) -> Any:
        self.trainers += 1
        return self.trainers

    def _make_driver(self, trainer: Any, job: Any) -> Any:
        self.begun.append(HeldDriver(trainer))
        return self.begun[-1]

    def begin(self, number: int, *devices: str) -> asyncio.Task[Any]:
        plan = SimpleNamespace(assignments=dict.fromkeys(devices))
        return asyncio.create_task(self.pool.run(SimpleNamespace(number=number, plan=plan)))  # type: ignore[arg-type]


async def test_rounds_one_after_the_other_have_one_trainer() -> None:
    made = Pool()
    for number in range(3):
        work = made.begin(number, "a", "b")
        await asyncio.sleep(0)
        assert made.fleet.drivers == dict.fromkeys("ab", made.begun[-1])
        made.begun[-1].go.set()
        assert await work == 1
        assert made.fleet.drivers == {}


async def test_rounds_at_the_same_time_have_a_trainer_each_and_get_it_back() -> None:
    made = Pool()
    first, second = made.begin(0, "a"), made.begin(1, "b")
    await asyncio.sleep(0)
    assert made.fleet.drivers == {"a": made.begun[0], "b": made.begun[1]}
    made.begun[0].go.set()
    assert await first == 1
    third = made.begin(2, "a")
    await asyncio.sleep(0)
    for driver in made.begun:
        driver.go.set()
    assert (await second, await third, made.trainers) == (2, 1, 2)


async def test_a_device_is_in_one_round_at_a_time() -> None:
    made = Pool()
    first = made.begin(0, "a", "b")
    await asyncio.sleep(0)
    with pytest.raises(RunError, match="round 1 is to begin with 'b', which is in another round"):
        await made.begin(1, "b", "c")
    assert made.fleet.drivers == dict.fromkeys("ab", made.begun[0])
    made.begun[0].go.set()
    await first
