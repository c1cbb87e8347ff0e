"""The steps of one round: prepare, begin, carry out, merge, finish, keep, test. `Loop` and `ConcurrentRounds` call
them."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
import torch
from torch import Tensor

from edgebed.link.endpoint import CHUNK_BYTES
from edgebed.methods.base import DeviceView, Method, Plan
from edgebed.models.staged import Weights
from orchestrator.clock import now_ns, now_s
from orchestrator.experiment import Environment, Training
from orchestrator.fleet.control.run_fleet import RunFleet
from orchestrator.records.types import (
    Evaluated,
    Fault,
    FinalTest,
    OrchestratorPhase,
    Record,
    RoundFinished,
    RoundStarted,
)
from orchestrator.rounds.driver_pool import DriverPool
from orchestrator.rounds.evaluator import Evaluator
from orchestrator.rounds.job import RoundJob, RoundResult
from orchestrator.rounds.progress import ROUNDED_S, Progress, cosine, plateau
from orchestrator.rounds.replay import Replay
from orchestrator.rounds.scenario_player import ScenarioPlayer
from orchestrator.rounds.settings import schedule_of
from orchestrator.rounds.world import World


class Begun(msgspec.Struct, frozen=True):
    """A round that is planned and recorded as started."""

    number: int
    views: list[DeviceView]
    plan: Plan
    start_ns: int


class RoundSteps:
    """The steps of a round, and what all rounds of a run share.

    Args:
        evaluator: tests weights.
        test: x (N, C, H, W) and y (N,) of the test set.
        validation: x and y of samples held out of the training part. Where given, rounds are evaluated with them, and
            only the last weights with the test set.
        save: writes a checkpoint of weights, progress, the method's tensors, and the weights of rounds in hand.
        watch: called after every evaluation, for the terminal.
        merged: called after every round with its weights, before they are saved.
        replay: a recorded plan, followed instead of the method's own.
        script: what happens to the devices by the experiment's scenario.
        world: says when checkpoints are due, and what they hold of the devices.
    """

    def __init__(
        self,
        *,
        method: Method,
        pool: DriverPool,
        devices: RunFleet,
        training: Training,
        environment: Environment | None,
        evaluator: Evaluator,
        test: tuple[Tensor, Tensor],
        save: Callable[[Weights, Progress, Weights, Weights], None],
        record: Callable[[Record], None],
        watch: Callable[[Progress, RoundResult, float], None],
        merged: Callable[[Weights, Progress], None] = lambda weights, progress: None,
        validation: tuple[Tensor, Tensor] | None = None,
        replay: Replay | None = None,
        script: ScenarioPlayer | None = None,
        world: World | None = None,
    ) -> None:
        self.method, self._pool, self._devices = method, pool, devices
        self.training, self._environment, self._evaluator = training, environment, evaluator
        self._test_set, self._save, self._record, self.watch = test, save, record, watch
        self._validation = validation
        self._replay, self._script, self.world = replay, script, world or World()
        self._merged = merged
        self._tested: Weights | None = None

    def reached(self, progress: Progress) -> bool:
        return self.training.stop_at_target and progress.accuracy >= self.training.target_accuracy

    @property
    def budget_s(self) -> float:
        """Of the run's time axis, after dilation."""
        budget_s = self.training.budget_s
        return math.inf if budget_s is None else budget_s * self._devices.dilation

    def spent(self, progress: Progress) -> bool:
        """Whether the run's budget of seconds is spent."""
        return progress.elapsed_s >= self.budget_s - ROUNDED_S

    def tested(self, progress: Progress) -> bool:
        """Whether merged weights were tested, in this session of the run or in an earlier one."""
        return self._tested is not None or progress.best_accuracy > 0 or progress.since_best > 0

    async def prepare(self, progress: Progress) -> list[DeviceView]:
        """Set learning rate and profiles of the next round; returns the devices that are present."""
        if self.training.cosine:
            progress.lr = cosine(progress.round, self.training)
        await self.reprofile(progress.round)
        if self._script is not None:
            await self._script.before_round(progress.round)
        return await self._devices.ready()

    async def reprofile(self, number: int) -> None:
        """Give the devices their profiles of this round."""
        if self._environment is not None:
            await self._devices.reprofile(self._environment, self.training.seed, number)

    def begin(self, lane: str, present: Sequence[DeviceView], progress: Progress) -> Begun:
        """Draw the devices of the next round and plan it."""
        number = progress.round
        progress.round += 1
        start = now_ns()
        views, plan = self._plan(number, present, progress.lr)
        planned_s = (now_ns() - start) / 1e9
        self._record(
            RoundStarted(
                at_ns=start,
                round=number,
                planned_s=planned_s,
                lr=progress.lr,
                devices=tuple(sorted(plan.assignments)),
                assignments=plan.assignments,
                predicted_s=plan.predicted_s,
                notes=plan.notes,
                lane=lane,
            )
        )
        self._record(OrchestratorPhase(start, now_ns(), number, "plan"))
        return Begun(number, views, plan, start)

    def _plan(self, number: int, present: Sequence[DeviceView], lr: float) -> tuple[list[DeviceView], Plan]:
        if self._replay is not None:
            views, plan = self._replay.begin(number, present)
            self.method.follow(number, present, plan)
            return views, plan
        views = self.method.draw(number, present, self.training.sample, self.training.seed)
        return views, self.method.plan(number, views, schedule_of(self.training, lr))

    async def carry_out(self, begun: Begun, weights: Weights, ends_s: float, quorum: int | None = None) -> RoundResult:
        wait_s = patience(begun.views)
        return await self._pool.run(RoundJob(begun.number, begun.plan, weights, self.method, wait_s, quorum, ends_s))

    async def merge(self, number: int, weights: Weights, result: RoundResult) -> Weights:
        if not result.contributions:
            return weights
        with _phase(self._record, number, "merge"):
            weights = await asyncio.to_thread(self.method.merge, weights, result.contributions)
            self.method.observe(number, sorted(result.outcomes, key=lambda outcome: outcome.device))
        return weights

    def finish(self, begun: Begun, result: RoundResult) -> float:
        """Record the end of the round; returns its seconds."""
        at_ns = now_ns()
        seconds = (at_ns - begun.start_ns) / 1e9
        merged = tuple(c.device for c in result.contributions)
        self._record(RoundFinished(at_ns, begun.number, seconds, merged, result.why))
        return seconds

    def fault(self, device: str, what: str) -> None:
        """Record something unexpected that does not end the run."""
        self._record(Fault(now_ns(), device, what))

    def last(self, progress: Progress) -> bool:
        """Whether all rounds have begun, the budget is spent, or the target is reached."""
        return progress.round >= self.training.rounds or self.spent(progress) or self.reached(progress)

    async def keep(
        self,
        number: int,
        weights: Weights,
        progress: Progress,
        rounds: Callable[[], dict[str, Any]] = dict,
        in_hand: Callable[[], Weights] = dict,
    ) -> None:
        """Save a checkpoint, if one is due.

        Args:
            rounds, in_hand: give what a simulated run needs of its rounds, as plain data and as weights.
        """
        self._merged(weights, progress)
        await self.world.settle()
        with _phase(self._record, number, "checkpoint"):
            save = _nothing
            if self.world.due() or self.last(progress):
                world = self.world.state()
                if self.training.budget_s is not None:
                    progress.spent_s = progress.elapsed_s / self._devices.dilation
                progress.method = self.method.state()
                progress.simulation = {**world, **rounds()} if world else {}
                save = partial(self._save, weights, progress, self.method.tensors(), in_hand() if world else {})
            await asyncio.to_thread(save)

    def tests_after(self, number: int) -> bool:
        """Whether the weights are tested after this round, if nothing else has them tested."""
        return (number + 1) % self.training.evaluate_every == 0

    async def test(self, number: int, weights: Weights, progress: Progress) -> None:
        start = now_s()
        with _phase(self._record, number, "evaluation"):
            samples = self._validation or self._test_set
            score = await self._evaluator.evaluate(self.method, weights, samples)
        self._record(Evaluated(now_ns(), number, score.accuracy, score.loss, now_s() - start, score.extra))
        progress.accuracy, progress.untested = score.accuracy, False
        if self._tested is None or not same(weights, self._tested):
            plateau(progress, self.training)
        self._tested = weights

    async def final_test(self, weights: Weights, progress: Progress) -> None:
        """Test the last weights with the test set, where rounds were evaluated with validation samples."""
        if self._validation is None:
            return
        start = now_s()
        score = await self._evaluator.final(self.method, weights, self._validation, self._test_set)
        self._record(FinalTest(now_ns(), progress.round - 1, score.accuracy, score.loss, now_s() - start, score.extra))


def _nothing() -> None:
    pass


@contextlib.contextmanager
def _phase(record: Callable[[Record], None], round: int, name: str) -> Iterator[None]:
    """Records a phase of the orchestrator in which all devices wait."""
    start = now_ns()
    try:
        yield
    finally:
        record(OrchestratorPhase(start, now_ns(), round, name))


def patience(devices: Sequence[DeviceView]) -> float:
    """Seconds in which the slowest link of a round surely moves one chunk: progress is seen in whole chunks."""
    slowest = min((min(view.uplink_bit_s, view.downlink_bit_s) for view in devices), default=0)
    return 3 * 8 * CHUNK_BYTES / slowest if slowest else 0.0


def same(one: Weights, other: Weights) -> bool:
    """Whether weights are equal to the bit. A second test of equal weights does not count for the plateau rule."""
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())
