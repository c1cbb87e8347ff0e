"""Tiers and step counts from measured seconds, worked by hand."""

from __future__ import annotations

import msgspec
import pytest

from edgebed.methods.base import Outcome
from edgebed.methods.parts.device_speed import Speeds, split_tiers, steps_in_time
from edgebed.wire.messages import Assignment, Report
from orchestrator.testing.rounds import view


def outcome(device: str, seconds: float, compute_s: float, batches: int, communication_s: float) -> Outcome:
    report = Report(10, batches, 0.5, compute_s, 0.0, None, 0, 0.0, 0, 0.0, 0.0)
    return Outcome(
        device, Assignment(device, {}, 4, (1, 6, 6), 4, "output"), report, seconds, communication_s, 1.0, 0.0
    )


def test_seconds_are_moving_averages_per_batch() -> None:
    speeds = Speeds()
    speeds.observe([outcome("a", 10.0, 6.0, 3, 1.0)])
    speeds.observe([outcome("a", 20.0, 4.0, 1, 3.0), outcome("b", 5.0, 0.0, 0, 1.0)])
    assert speeds.round_s == {"a": 15.0, "b": 5.0}
    assert speeds.batch_s == {"a": 3.0}
    assert speeds.communication_s == {"a": 2.0, "b": 1.0}


def test_cpu_seconds_by_the_quota_count_where_the_clock_saw_less() -> None:
    """Three batches of 0.2 CPU seconds at 0.1 CPU: 2 s each in the long run. Without a known quota the clock counts."""
    report = msgspec.structs.replace(outcome("a", 10.0, 1.5, 3, 1.0).report, compute_cpu_s=0.45, encode_cpu_s=0.15)
    measured = msgspec.structs.replace(outcome("a", 10.0, 1.5, 3, 1.0), report=report)
    speeds, unknown = Speeds(), Speeds()
    speeds.meet([view("a", cpus=0.1)])
    for each in (speeds, unknown):
        each.observe([measured])
    assert speeds.batch_s == pytest.approx({"a": 2.0})
    assert unknown.batch_s == {"a": 0.5}


@pytest.mark.parametrize(
    ("seconds", "count", "tiers"),
    [
        ({"a": 3, "b": 1, "c": 2, "d": 9, "e": 8}, 2, [["b", "c", "a"], ["e", "d"]]),
        ({"a": 3, "b": 1, "c": 2, "d": 9, "e": 8}, 3, [["b", "c"], ["a", "e"], ["d"]]),
        ({"b": 1, "a": 1}, 5, [["a"], ["b"]]),
        ({"a": float("inf"), "b": 7}, 1, [["b", "a"]]),
        ({}, 3, []),
    ],
)
def test_tiers(seconds: dict[str, float], count: int, tiers: list[list[str]]) -> None:
    assert split_tiers(seconds, count) == tiers


def test_steps_that_fit_into_the_median_round() -> None:
    """T = 1+10·1 = 11, 2+10·2 = 22, 3+10·10 = 103: the median is 22, of c (22-3)/10 = 1.9 batches fit."""
    speeds = Speeds(batch_s={"a": 1.0, "b": 2.0, "c": 10.0}, communication_s={"a": 1.0, "b": 2.0, "c": 3.0})
    assert steps_in_time({"a": 10, "b": 10, "c": 10, "new": 10}, speeds) == {"a": 10, "b": 10, "c": 1, "new": 10}


def test_a_device_whose_link_alone_takes_longer_does_one_step() -> None:
    speeds = Speeds(batch_s={"a": 1.0, "b": 1.0, "c": 1.0}, communication_s={"a": 0.0, "b": 0.0, "c": 50.0})
    assert steps_in_time({"a": 4, "b": 4, "c": 4}, speeds) == {"a": 4, "b": 4, "c": 1}
    assert steps_in_time({"x": 4}, speeds) == {"x": 4}
