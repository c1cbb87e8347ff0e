"""Sampling and the learning-rate rule of the run loop."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from edgebed.errors import FleetError, RunError, UsageError
from edgebed.methods.base import DeviceView, Method, Score
from edgebed.methods.parts.device_sampling import draw_share
from edgebed.models.staged import Weights
from edgebed.wire.messages import Assignment
from edgebed.wire.settings import Optimizer
from orchestrator.experiment import Plateau, Training
from orchestrator.records.types import Evaluated, FinalTest, Record, RoundStarted
from orchestrator.rounds.evaluator import LocalEvaluator
from orchestrator.rounds.event_loop import uninterrupted
from orchestrator.rounds.loop import Loop
from orchestrator.rounds.progress import Progress, cosine, plateau
from orchestrator.rounds.replay import Replay
from tests.all_rounds import run_all


def made(**parts: Any) -> Loop:
    """A loop of these parts, and of nothing for the others."""
    evaluator = LocalEvaluator(torch.device("cpu"))
    nothing = {"method": None, "pool": None, "devices": None, "environment": None, "evaluator": evaluator}
    calls = {name: lambda *_: None for name in ("save", "record", "watch")}
    return Loop(**{**nothing, **calls, "test": (torch.zeros(1), torch.zeros(1)), **parts})


def views(count: int) -> list[DeviceView]:
    return [DeviceView(f"d{i:03d}", 10, 1.0, 1, 1) for i in range(count)]


@given(st.integers(1, 40), st.floats(0.01, 1.0), st.integers(0, 9), st.randoms())
def test_a_sample_depends_on_seed_and_round_and_not_on_order(count: int, share: float, number: int, random) -> None:  # type: ignore[no-untyped-def]
    devices = views(count)
    drawn = draw_share(devices, share, 1, number)
    random.shuffle(devices)
    assert draw_share(devices, share, 1, number) == drawn
    assert 1 <= len(drawn) <= count
    assert abs(len(drawn) - share * count) <= 1


def test_all_take_part_by_default() -> None:
    assert draw_share(views(5), 1.0, 0, 3) == views(5)


def test_the_learning_rate_falls_after_patience_without_a_better_accuracy() -> None:
    training = Training(plateau=Plateau(factor=0.5, patience=2))
    progress = Progress(lr=1.0)
    for accuracy in (0.5, 0.4, 0.5):
        progress.accuracy = accuracy
        plateau(progress, training)
    assert progress.lr == 0.5
    progress.accuracy = 0.6
    plateau(progress, training)
    assert (progress.lr, progress.since_best, progress.best_accuracy) == (0.5, 0, 0.6)


def test_a_cosine_begins_at_the_learning_rate_and_nears_zero() -> None:
    training = Training(rounds=4, optimizer=Optimizer("sgd", lr=0.1), cosine=True)
    assert [cosine(number, training) for number in range(4)] == pytest.approx(
        [0.1, 0.0853553, 0.05, 0.0146447], abs=1e-6
    )
    assert cosine(4, training) == pytest.approx(0.0, abs=1e-12)


async def test_a_resumed_run_goes_on_along_the_cosine_and_leaves_the_plateau_rule_alone() -> None:
    training = Training(rounds=4, optimizer=Optimizer("sgd", lr=0.1), cosine=True, plateau=Plateau(patience=1))
    progress = Progress(round=2, lr=0.0853553, accuracy=0.1, best_accuracy=0.5)
    plateau(progress, training)
    assert progress.lr == 0.0853553

    class Nobody:
        async def ready(self) -> list[DeviceView]:
            raise FleetError("nobody comes")

    loop = made(devices=Nobody(), training=training)
    with pytest.raises(FleetError):
        await run_all(loop, {}, progress)
    assert progress.lr == pytest.approx(0.05)


class Judge(Method):
    """Says of samples what they say of themselves."""

    def evaluate(self, weights: Weights, x: torch.Tensor, y: torch.Tensor, accelerator: torch.device) -> Score:
        return Score(float(x.mean()), 0.0)


@pytest.mark.parametrize("held_out", [True, False])
async def test_rounds_are_judged_by_the_validation_part_and_the_test_part_is_used_once(held_out: bool) -> None:
    said: list[Record] = []
    loop = made(
        method=Judge(),
        training=Training(rounds=3),
        test=(torch.tensor([0.25]), torch.zeros(1)),
        record=said.append,
        validation=(torch.tensor([0.75]), torch.zeros(1)) if held_out else None,
    )
    progress = Progress(round=3)
    await loop.test(2, {}, progress)
    assert await run_all(loop, {}, progress) == "rounds done"
    assert [each.accuracy for each in said if isinstance(each, Evaluated)] == [0.75 if held_out else 0.25]
    assert [(each.round, each.accuracy) for each in said if isinstance(each, FinalTest)] == [(2, 0.25)] * held_out
    assert progress.best_accuracy == (0.75 if held_out else 0.25)


async def test_what_must_not_be_interrupted_ends_before_the_interruption_counts() -> None:
    began, go, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        began.set()
        await go.wait()
        done.set()

    task = asyncio.create_task(uninterrupted(work()))
    await began.wait()
    task.cancel()
    asyncio.get_running_loop().call_soon(go.set)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done.is_set()


async def test_an_error_of_what_must_not_be_interrupted_is_not_lost_in_the_interruption() -> None:
    began, go = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        began.set()
        await go.wait()
        raise OSError("disk full")

    task = asyncio.create_task(uninterrupted(work()))
    await began.wait()
    task.cancel()
    asyncio.get_running_loop().call_soon(go.set)
    with pytest.raises(OSError, match="disk full"):
        await task


async def test_testing_the_same_weights_again_does_not_bring_the_learning_rate_down() -> None:
    class Still(Method):
        def evaluate(self, weights: Weights, x: Tensor, y: Tensor, accelerator: torch.device) -> Score:
            return Score(0.5, 0.0)

    loop = made(method=Still(), training=Training(plateau=Plateau(factor=0.5, patience=2)))
    progress = Progress(lr=1.0)
    for number in range(6):
        await loop.test(number, {"w": torch.ones(3)}, progress)
    assert (progress.lr, progress.since_best) == (1.0, 0)
    for number in range(2):
        await loop.test(number, {"w": torch.full((3,), 2.0 + number)}, progress)
    assert progress.lr == 0.5


def test_a_recorded_plan_is_repeated_with_its_devices_and_refused_where_it_does_not_fit() -> None:
    assignment = Assignment("d001", {}, 2, (1,), 1, "output")
    first, again = (RoundStarted(1, 0, 0.0, 0.1, (name,), {name: assignment}) for name in ("d000", "d001"))
    replay = Replay([first, again, msgspec.structs.replace(again, round=1)])
    chosen, plan = replay.begin(0, views(3))
    assert [view.name for view in chosen] == ["d001"], "a round that was done again counts as it was done last"
    assert plan.assignments == {"d001": assignment}
    with pytest.raises(RunError, match="d001, not present now"):
        replay.begin(1, views(1))
    replay.check(2, 1)
    for rounds, methods in ((3, 1), (2, 2)):
        with pytest.raises(UsageError) as refused:
            replay.check(rounds, methods)
        assert refused.value.hint
    with pytest.raises(UsageError, match="overlap"):
        Replay([msgspec.structs.replace(first, lane="tier 1")]).check(1, 1)
