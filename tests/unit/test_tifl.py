"""TiFL's draw: profiling, one tier, its credits, and who is drawn more often."""

from __future__ import annotations

from collections import Counter

import pytest

from edgebed.methods.parts.device_speed import Speeds
from edgebed.methods.tifl import Memory, TiFL, shares_by_rank
from orchestrator.testing.rounds import SCHEDULE, make_method, view

SECONDS = {"a": 1.0, "b": 2.0, "c": 9.0, "d": 8.0}
VIEWS = [view(name) for name in SECONDS]


def profiled(**options: int) -> TiFL:
    method = make_method("tifl", **{"tiers": 2, **options})
    assert isinstance(method, TiFL)
    method.memory = Memory(Speeds(round_s=dict(SECONDS)), rounds=1)
    return method


def test_profiling_takes_all_devices_whatever_the_share() -> None:
    method = make_method("tifl", tiers=2)
    assert method.draw(0, VIEWS, 0.25, seed=1) == VIEWS


def test_then_every_round_takes_one_tier() -> None:
    method = profiled()
    drawn = {tuple(v.name for v in method.draw(number, VIEWS, 1.0, seed=1)) for number in range(1, 9)}
    assert drawn == {("a", "b"), ("c", "d")}
    assert method.plan(9, VIEWS[:2], SCHEDULE).notes["credits"] == method.memory.credits


def test_a_share_is_of_all_devices_and_no_more_than_the_tier() -> None:
    method = profiled()
    assert {len(method.draw(number, VIEWS, 0.25, seed=1)) for number in range(9)} == {1}


def test_credits_bound_how_often_a_tier_is_drawn_until_all_are_spent() -> None:
    method = profiled(credits=3)
    tiers = []
    for number in range(12):
        method.draw(number, VIEWS, 1.0, seed=2)
        tiers.append(method.memory.chosen)
    assert [Counter(tiers[start : start + 6]) for start in (0, 6)] == [Counter({0: 3, 1: 3})] * 2


def test_a_device_that_was_never_measured_is_in_the_slowest_tier() -> None:
    method = profiled()
    tiers = method.tiers([*VIEWS, view("new")])
    assert [[v.name for v in tier] for tier in tiers] == [["a", "b", "d"], ["c", "new"]]


def test_the_tier_that_is_behind_is_drawn_more_often() -> None:
    """Losses 0.2, 0.9, 0.5 of three tiers: places 2, 0, 1, so 1/6, 3/6, 2/6."""
    assert shares_by_rank([0.2, 0.9, 0.5]) == pytest.approx([1 / 6, 3 / 6, 2 / 6])
    assert shares_by_rank([0.4]) == [1.0]


def test_it_goes_on_where_it_was() -> None:
    method, again = profiled(), make_method("tifl", tiers=2)
    method.draw(1, VIEWS, 1.0, seed=1)
    again.restore(method.state(), method.tensors())
    assert [again.draw(n, VIEWS, 1.0, 1) for n in range(2, 9)] == [method.draw(n, VIEWS, 1.0, 1) for n in range(2, 9)]
