"""Sampling and the learning-rate rule of the run loop."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgebed.methods.base import DeviceView, draw_share
from orchestrator.experiment import Plateau, Training
from orchestrator.rounds.loop import Progress, plateau, uninterrupted


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
