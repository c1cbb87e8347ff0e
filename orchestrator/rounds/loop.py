"""One run: plan, round, merge, evaluate, save, and again, until the target, the last round or Ctrl-C."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Protocol

import msgspec
import torch
from torch import Tensor

from edgebed.errors import RunError
from edgebed.link.transfer import CHUNK_BYTES
from edgebed.methods.base import DeviceView, Method, Outcome, Plan, Schedule
from edgebed.models.staged import Weights
from orchestrator.experiment import Environment, Training
from orchestrator.records.types import (
    Evaluated,
    OrchestratorPhase,
    Record,
    RoundFinished,
    RoundStarted,
)
from orchestrator.rounds.clock import now_ns, now_s
from orchestrator.rounds.driver import RoundDriver, RoundResult

VOID_ROUNDS = 3
"""So many rounds in a row without a quorum end the run."""


class Devices(Protocol):
    """What the loop needs of the standing fleet."""

    async def ready(self) -> list[DeviceView]:
        """Devices present with their limits on; waits for one at least."""

    async def reprofile(self, environment: Environment, seed: int, round: int) -> None:
        """Put on the devices the profiles that they have in this round."""


class Progress(msgspec.Struct):
    """What a run has reached; saved with every checkpoint, so that a resumed run goes on where it was."""

    round: int = 0  # the next one
    elapsed_s: float = 0.0  # of all rounds, evaluation excluded, not divided by the dilation
    lr: float = 0.0
    best_accuracy: float = 0.0
    since_best: int = 0
    accuracy: float = 0.0
    method: dict[str, Any] = {}


class Loop:
    """One run.

    Args:
        test: x (N, C, H, W) and y (N,) of the test set.
        save: called after every round with weights, progress and the method's tensors.
        watch: called after every evaluation, for the terminal.
    """

    def __init__(
        self,
        *,
        method: Method,
        driver: RoundDriver,
        devices: Devices,
        training: Training,
        environment: Environment | None,
        accelerator: torch.device,
        test: tuple[Tensor, Tensor],
        save: Callable[[Weights, Progress, Weights], None],
        record: Callable[[Record], None],
        watch: Callable[[Progress, RoundResult, float], None],
    ) -> None:
        self._method, self._driver, self._devices = method, driver, devices
        self._training, self._environment, self._accelerator = training, environment, accelerator
        self._test_set, self._save, self._record, self._watch = test, save, record, watch

    async def run(self, weights: Weights, progress: Progress) -> str:
        """Rounds from `progress.round` on; returns why the run ended. Raises RunError after void rounds in a row."""
        progress.lr = progress.lr or self._training.optimizer.lr
        void = 0
        while progress.round < self._training.rounds:
            if self._reached(progress):
                return "target reached"
            weights, result = await self._round(weights, progress)
            void = void + 1 if result.why == "void" else 0
            if void >= VOID_ROUNDS:
                raise RunError(
                    f"{void} rounds in a row ended without a quorum of {self._training.quorum}",
                    cure="look for device_out in records.jsonl; then mend the devices, or lower training.quorum",
                )
        return "target reached" if self._reached(progress) else "rounds done"

    def _reached(self, progress: Progress) -> bool:
        return self._training.stop_at_target and progress.accuracy >= self._training.target_accuracy

    async def _round(self, weights: Weights, progress: Progress) -> tuple[Weights, RoundResult]:
        number = progress.round
        if self._training.cosine:
            progress.lr = cosine(number, self._training)
        if self._environment is not None:
            await self._devices.reprofile(self._environment, self._training.seed, number)
        ready = await self._devices.ready()
        views = self._method.draw(number, ready, self._training.sample, self._training.seed)
        start = now_ns()
        plan = self._plan(number, views, progress, start)
        result = await self._driver.run(number, plan, weights, self._method, self._accelerator, patience(views))
        weights = await self._merge(number, weights, result)
        seconds = (now_ns() - start) / 1e9
        merged = tuple(c.device for c in result.contributions)
        self._record(RoundFinished(now_ns(), number, seconds, merged, result.why))
        progress.round, progress.elapsed_s = number + 1, progress.elapsed_s + seconds
        await uninterrupted(self._conclude(number, weights, progress, result))
        self._watch(progress, result, seconds)
        return weights, result

    async def _conclude(self, number: int, weights: Weights, progress: Progress, result: RoundResult) -> None:
        """Test and keep what a finished round gave: a run goes on from the last round that is recorded as finished."""
        if result.contributions:
            await self._test(number, weights, progress)
        with _phase(self._record, number, "checkpoint"):
            progress.method = self._method.state()
            await asyncio.to_thread(self._save, weights, progress, self._method.tensors())

    def _plan(self, number: int, views: Sequence[DeviceView], progress: Progress, start: int) -> Plan:
        schedule = self._schedule(progress.lr)
        plan = self._method.plan(number, views, schedule)
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
            )
        )
        self._record(OrchestratorPhase(start, now_ns(), number, "plan"))
        return plan

    def _schedule(self, lr: float) -> Schedule:
        t = self._training
        optimizer = msgspec.structs.replace(t.optimizer, lr=lr)
        return Schedule(t.batch_size, t.epochs, t.max_batches, optimizer, t.codec, t.seed)

    async def _merge(self, number: int, weights: Weights, result: RoundResult) -> Weights:
        if not result.contributions:
            return weights
        with _phase(self._record, number, "merge"):
            weights = await asyncio.to_thread(self._method.merge, weights, result.contributions)
            self._method.observe(number, _sorted(result.outcomes))
        return weights

    async def _test(self, number: int, weights: Weights, progress: Progress) -> None:
        start = now_s()
        with _phase(self._record, number, "evaluation"):
            score = await asyncio.to_thread(self._method.evaluate, weights, *self._test_set, self._accelerator)
        self._record(Evaluated(now_ns(), number, score.accuracy, score.loss, now_s() - start, score.extra))
        progress.accuracy = score.accuracy
        plateau(progress, self._training)


async def uninterrupted(work: Coroutine[Any, Any, None]) -> None:
    """Await `work`; a cancellation waits until it has ended."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


class _phase:
    """Records what the orchestrator does while all devices wait."""

    def __init__(self, record: Callable[[Record], None], round: int, name: str) -> None:
        self._record, self._round, self._name = record, round, name

    def __enter__(self) -> None:
        self._start = now_ns()

    def __exit__(self, *_: object) -> None:
        self._record(OrchestratorPhase(self._start, now_ns(), self._round, self._name))


def patience(devices: Sequence[DeviceView]) -> float:
    """Seconds in which the slowest link of a round certainly moves one chunk: only whole chunks show as progress."""
    slowest = min((min(view.uplink_bit_s, view.downlink_bit_s) for view in devices), default=0)
    return 3 * 8 * CHUNK_BYTES / slowest if slowest else 0.0


def plateau(progress: Progress, training: Training) -> None:
    """Lower the learning rate when accuracy has not risen for some evaluations (methods.md §1)."""
    if progress.accuracy > progress.best_accuracy:
        progress.best_accuracy, progress.since_best = progress.accuracy, 0
        return
    progress.since_best += 1
    rule = None if training.cosine else training.plateau
    if rule is not None and progress.since_best >= rule.patience:
        progress.lr, progress.since_best = progress.lr * rule.factor, 0


def cosine(round: int, training: Training) -> float:
    """The learning rate of round 0, 1, … of a cosine from `optimizer.lr` to 0 at the end (methods.md §4)."""
    return training.optimizer.lr * (1 + math.cos(math.pi * round / training.rounds)) / 2


def _sorted(outcomes: Iterable[Outcome]) -> list[Outcome]:
    return sorted(outcomes, key=lambda outcome: outcome.device)
