"""When a data connection is taken for dead. A slow one never is."""

from __future__ import annotations

import dataclasses

import pytest

from edge_agent.data_watch import limit_s
from edgebed.link.deafness import Deafness, Signs

FINE = Signs(asked=0.0, marked=None, heard=0.0, arrived=0.0, drained=True)
LIMIT_S = 10.0


def verdict_after(seconds: int, *, heard: bool = True, **signs: object) -> float | None:
    """When a connection whose signs stay as they are is taken for dead; control is heard all the time, or never."""
    deafness, signs_ = Deafness(), dataclasses.replace(FINE, **signs)  # type: ignore[arg-type]
    for now in range(100, 100 + seconds):
        if deafness.verdict(dataclasses.replace(signs_, heard=now if heard else 0.0), now, LIMIT_S):
            return now - 100
    return None


def test_questions_that_nothing_follows_are_a_sign() -> None:
    assert verdict_after(60, asked=100.0, arrived=50.0) == LIMIT_S


def test_an_idle_connection_without_questions_is_fine() -> None:
    assert verdict_after(600, arrived=50.0) is None


def test_a_byte_after_the_question_or_just_before_it_answers_it() -> None:
    """Of a slow chunk, or of the mark that was sent with the question."""
    assert verdict_after(600, asked=100.0, arrived=100.2) is None
    assert verdict_after(600, asked=100.0, arrived=99.8) is None


def test_what_was_sent_must_come_out_once_the_kernel_has_nothing_left() -> None:
    assert verdict_after(60, marked=100.0) == 3 * LIMIT_S
    assert verdict_after(600, marked=100.0, drained=False) is None


def test_where_control_is_silent_too_nothing_is_known() -> None:
    assert verdict_after(600, asked=100.0, arrived=50.0, heard=False) is None
    assert verdict_after(600, marked=100.0, heard=False) is None


def test_after_each_verdict_what_was_sent_has_twice_as_long_to_come_out() -> None:
    deafness, signs = Deafness(), dataclasses.replace(FINE, marked=100.0)
    told = [
        now for now in range(100, 350) if deafness.verdict(dataclasses.replace(signs, heard=float(now)), now, LIMIT_S)
    ]
    assert told == [130, 191, 312]


def test_a_new_connection_on_which_nothing_follows_a_new_question_is_dead_too() -> None:
    """Its handshake arrived, so the old question counts as answered; the orchestrator asks again."""
    deafness = Deafness()
    assert deafness.verdict(Signs(100.0, None, 110.0, 50.0, True), 100.0, LIMIT_S) == ""
    assert deafness.verdict(Signs(100.0, None, 110.0, 50.0, True), 110.0, LIMIT_S)
    assert deafness.verdict(Signs(110.0, None, 121.0, 111.0, True), 121.0, LIMIT_S) == ""
    assert deafness.verdict(Signs(120.0, None, 121.0, 111.0, True), 121.0, LIMIT_S) == ""
    assert deafness.verdict(Signs(130.0, None, 130.0, 111.0, True), 130.0, LIMIT_S)


@pytest.mark.parametrize("mbit_s", [0.1, 0.3, 1.0, 100.0])
def test_a_slow_link_is_never_taken_for_dead(mbit_s: float) -> None:
    """Both ways at once, four chunks of 1 MiB on the way: at 0.1 Mbit/s a mark takes six minutes. A byte arrives, and
    one is acknowledged, with every frame of 1448 bytes."""
    deafness, frame_s = Deafness(), 1448 * 8 / mbit_s / 1e6
    pass_s = 4 * (1 << 20) * 8 / mbit_s / 1e6
    for now in range(1000, 1000 + int(pass_s) + 1):
        arrived = now - now % frame_s
        signs = Signs(asked=now - now % 10, marked=1000.0, heard=now, arrived=arrived, drained=False)
        assert not deafness.verdict(signs, float(now), LIMIT_S)


def test_the_limit_follows_the_heartbeat_and_so_the_dilation() -> None:
    assert limit_s(0.5) == 10.0
    assert limit_s(5.0 * 8) == 80.0
