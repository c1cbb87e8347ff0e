"""Rounds of several lanes over real agents: a fast tier that does not wait, lost devices, the end and the target."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from edgebed.methods.fedat import FedAT, opposite_shares
from edgebed.methods.parts.aggregation import average
from edgebed.methods.parts.device_speed import Speeds
from edgebed.methods.parts.evaluation import Score
from edgebed.models.staged import Weights
from orchestrator.records.types import DeviceOut, Evaluated, Fault, RoundFinished, RoundStarted
from tests.component._fleet import Fleet, fleet, start_weights, training

FOUR = dict.fromkeys(("dev-1", "dev-2", "dev-3", "dev-4"), 16)
SLOW = ("dev-3", "dev-4")


class TwoTiers(FedAT):
    """dev-3 and dev-4 are the slow ones, whatever was measured; `then` is called when profiling has ended."""

    then: Callable[[], None] = staticmethod(lambda: None)
    reached_after = 10**9

    def _make_tiers(self) -> None:
        self.memory.speeds = Speeds(round_s={name: 2.0 if name in SLOW else 1.0 for name in FOUR})
        super()._make_tiers()
        self.then()

    def evaluate(self, weights: Weights, x: Tensor, y: Tensor, accelerator: torch.device) -> Score:
        return Score(float(sum(self.memory.updates) >= self.reached_after), 0.0)


def holding(made: Fleet, *devices: str) -> TwoTiers:
    """The method; from its first round with tiers on, `devices` wait at their gates."""
    method = TwoTiers(TwoTiers.Options(tiers=2))
    method.then = lambda: [made.trainers[device].gate.clear() for device in devices] and None
    return method


def release(made: Fleet, *devices: str) -> None:
    for device in devices:
        made.trainers[device].gate.set()


def ends(made: Fleet, lane: str) -> list[RoundFinished]:
    lanes = {r.round: r.lane for r in made.of(RoundStarted)}
    return [r for r in made.of(RoundFinished) if lanes[r.round] == lane]


async def until(made: Fleet, lane: str, count: int) -> None:
    await made.expect(RoundFinished, lambda _: len(ends(made, lane)) >= count)


async def test_a_fast_tier_goes_on_while_the_slow_one_trains(tmp_path: Path) -> None:
    async with fleet(tmp_path, FOUR) as made:
        method = holding(made, *SLOW)
        run = asyncio.create_task(made.play(method, training(rounds=8)))
        await until(made, "tier 1", 4)
        assert not ends(made, "tier 2")
        release(made, *SLOW)
        weights = await run
        assert not made.of(Fault)
        assert not made.of(DeviceOut)
        assert [r.round for r in made.of(RoundStarted)] == list(range(8))
        assert sorted(r.round for r in made.of(RoundFinished)) == list(range(8))
        assert {r.merged for r in ends(made, "tier 1")} == {("dev-1", "dev-2")}
        assert {r.merged for r in ends(made, "tier 2")} == {SLOW}
        assert [len(ends(made, lane)) + 1 for lane in ("tier 1", "tier 2")] == method.memory.updates
        expected = average(
            start_weights(), list(zip(opposite_shares(method.memory.updates), method.models, strict=True))
        )
        assert all(torch.equal(weights[name], value) for name, value in expected.items())
        assert made.of(Evaluated)[-1].round == made.of(RoundFinished)[-1].round, "the last weights are tested too"


async def test_a_device_that_is_lost_costs_its_own_lane_alone(tmp_path: Path) -> None:
    async with fleet(tmp_path, FOUR) as made:
        run = asyncio.create_task(made.play(holding(made, *SLOW), training(rounds=6)))
        await until(made, "tier 1", 1)
        made.controller.on_exit("dev-4", "killed")
        out = await made.expect(DeviceOut)
        assert (out.device, out.how) == ("dev-4", "lost")
        release(made, *SLOW)
        await run
        assert ends(made, "tier 2")[0].merged == ("dev-3",)
        assert {r.merged for r in ends(made, "tier 1")} == {("dev-1", "dev-2")}


async def test_a_lane_whose_devices_are_all_lost_is_void_and_the_other_goes_on(tmp_path: Path) -> None:
    async with fleet(tmp_path, FOUR) as made:
        run = asyncio.create_task(made.play(holding(made, *SLOW), training(rounds=8)))
        await until(made, "tier 1", 1)
        for device in SLOW:
            made.controller.on_exit(device, "killed")
        await until(made, "tier 2", 1)
        release(made, *SLOW)
        await run
        assert (ends(made, "tier 2")[0].why, ends(made, "tier 2")[0].merged) == ("void", ())
        assert len(made.of(RoundFinished)) == 8


async def test_devices_whose_rounds_are_all_void_are_left_out_and_named_and_the_run_goes_on(tmp_path: Path) -> None:
    async with fleet(tmp_path, FOUR) as made:
        method = holding(made, "dev-1", "dev-2")
        hold = method.then

        def poison() -> None:
            hold()
            for device in SLOW:
                made.trainers[device].change = lambda weights: {n: torch.zeros_like(w) - 1 for n, w in weights.items()}

        method.then = poison
        run = asyncio.create_task(made.play(method, training(rounds=7)))
        await made.expect(Fault)
        release(made, "dev-1", "dev-2")
        await run
        assert [(r.why, r.merged) for r in ends(made, "tier 2")] == [("void", ())] * 3
        assert [r.merged for r in ends(made, "tier 1")] == [("dev-1", "dev-2")] * 3
        faults = made.of(Fault)
        assert [fault.device for fault in faults] == list(SLOW)
        assert all("left out from now on" in fault.what and "may not be merged" in fault.what for fault in faults)


async def test_the_target_ends_the_rounds_of_all_lanes(tmp_path: Path) -> None:
    async with fleet(tmp_path, FOUR) as made:
        method = holding(made, *SLOW)
        method.reached_after = 5  # two of the profiling, three of tier 1
        await made.play(method, training(rounds=100, target_accuracy=0.9, stop_at_target=True))
        assert {(r.device, r.how) for r in made.of(DeviceOut)} >= {(device, "cancelled") for device in SLOW}
        assert not ends(made, "tier 2")
        assert len(made.of(RoundStarted)) < 100


async def test_an_interruption_cancels_the_rounds_of_all_lanes(tmp_path: Path) -> None:
    async with fleet(tmp_path, FOUR) as made:
        run = asyncio.create_task(made.play(holding(made, *FOUR), training(rounds=8)))
        await made.expect(RoundStarted, lambda r: r.lane == "tier 2")
        run.cancel()
        (ended,) = await asyncio.gather(run, return_exceptions=True)
        assert isinstance(ended, asyncio.CancelledError)
        assert {(r.device, r.how) for r in made.of(DeviceOut)} == {(device, "cancelled") for device in FOUR}
        assert [r.round for r in made.of(RoundFinished)] == [0]
