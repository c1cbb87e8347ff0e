"""A process hangs when it has work and uses no CPU time."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from orchestrator.training.stillness import Stillness

Look = tuple[bool, float]


def first_hang(looks: Iterable[Look], cpus: float = 1.0) -> int | None:
    """Number of the look, from 0, at which a process counts as hanging; three looks are too many."""
    stillness = Stillness(3)
    found = [stillness.hangs(at_work, cpu_s, cpus) for at_work, cpu_s in looks]
    return found.index(True) if True in found else None


def test_work_without_cpu_time_is_a_hang_after_so_many_looks() -> None:
    assert first_hang([(True, 1.0)] * 5) == 3  # the first look has none before it
    assert first_hang([(True, 0.0)] * 5) == 3


@pytest.mark.parametrize(
    "looks",
    [
        [(True, number / 100) for number in range(20)],  # it works
        [(False, 1.0)] * 20,  # it has nothing to do
        [(number % 3 > 0, 1.0) for number in range(20)],  # it has answered in between
        [(True, number // 3 / 100) for number in range(20)],  # it works now and then
    ],
)
def test_anything_else_is_none(looks: list[Look]) -> None:
    assert first_hang(looks) is None


def test_a_paced_server_may_wait_for_longer() -> None:
    assert first_hang([(True, 1.0)] * 100, cpus=0.1) == 30
    assert first_hang([(True, 1.0)] * 100, cpus=4.0) == 3
