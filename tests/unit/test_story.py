"""Two stories side by side: what lines say, which agree, and how far apart they are."""

from __future__ import annotations

import pytest

from orchestrator.records import types as t
from tests.story import Beside, Line, agreement, side_by_side, story

S = 1_000_000_000


def run(*records: t.Record) -> list[t.Record]:
    head = t.RunStarted(S, "", "r", "x", "fedavg", 1, "local", "kernel", 2.0, True, 0, 1.0)
    joined = [t.DeviceJoined(S, name, "i", False) for name in ("a", "b")]
    return [head, *joined, t.RoundStarted(10 * S, 0, 0.0, 0.1, ("a", "b"), {}), *records]


def test_a_story_tells_what_happened_on_the_axis_of_the_run() -> None:
    told = story(
        run(
            t.ScenarioStep(14 * S, 14 * S, "a", 0, "cut", True, "link cut, for 4 s", "link down"),
            t.ScenarioStep(15 * S, 15 * S, "b", 1, "rate", True, "rate"),
            t.DeviceOut(20 * S, 0, "a", "lost", "silent for 5.02 s"),
            t.DeviceLeft(20 * S, "a", "silent for 5.02 s"),
            t.RoundFinished(22 * S, 0, 12.0, ("b",), "all done"),
            t.RoundStarted(30 * S, 1, 0.0, 0.1, ("b",), {}),
            t.DeviceJoined(34 * S, "a", "j", True),
            t.RoundFinished(40 * S, 1, 10.0, (), "all done"),
        )
    )
    assert told == [
        Line(2.0, "a: link cut, for 4 s"),
        Line(5.0, "a is left out of round 1 (lost)"),
        Line(5.0, "a is away"),
        Line(6.0, "round 1 merges b"),
        Line(8.0, "a is back"),
        Line(11.0, "round 2 merges nothing"),
    ]


def test_a_step_that_failed_is_another_line() -> None:
    step = t.ScenarioStep(14 * S, 14 * S, "a", 0, "cut", True, "link cut", error="no netem")
    assert [line.text for line in story(run(step))] == ["a: link cut (failed)"]


def test_equal_lines_are_paired_in_their_order() -> None:
    real = [Line(1.0, "a is away"), Line(2.0, "a is back"), Line(5.0, "a is away"), Line(6.0, "b is away")]
    simulated = [Line(1.5, "a is away"), Line(2.0, "a is back"), Line(3.0, "c is back")]
    told = side_by_side(real, simulated)
    assert told == [
        Beside("a is away", 1.0, 1.5),
        Beside("a is back", 2.0, 2.0),
        Beside("c is back", None, 3.0),
        Beside("a is away", 5.0, None),
        Beside("b is away", 6.0, None),
    ]
    assert [line.apart_s for line in told] == [0.5, 0.0, None, None, None]
    assert agreement(told) == pytest.approx(4 / 7)


def test_stories_without_lines_agree() -> None:
    assert agreement(side_by_side([], [])) == 1.0
