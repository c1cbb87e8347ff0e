"""The pauses between the reads of a message: they save reads and cost no time."""

from __future__ import annotations

import pytest

from edgebed.link.read_pauses import PACE_MAX_S, PACE_MIN_S, ReadPauses

RATE = 1.25e6
"""Bytes per second of 10 Mbit/s."""


def receive(pacer: ReadPauses, size: int, now_s: float, rate: float = RATE) -> tuple[float, int]:
    """Seconds that a message took over its own time on a link of `rate`, and the reads of it."""
    begin, got, reads = now_s, 0, 0
    while True:
        arrived = min(size, int((now_s - begin) * rate) + 1448)
        reads += 1
        pause = pacer.pause_s(arrived - got, size - arrived, now_s)
        if arrived == size:
            return now_s - begin - (size - 1448) / rate, reads
        got = arrived
        now_s += pause or 1448 / rate  # without a pause the next segment wakes us


@pytest.mark.parametrize("size", [2_000, 8_000, 190_000, 1 << 20])
def test_pauses_save_reads_and_cost_a_message_no_time(size: int) -> None:
    pacer = ReadPauses()
    receive(pacer, size, 0.0)  # what a link gives is seen in its first message
    late_s, reads = receive(pacer, size, 10.0)
    assert late_s <= PACE_MIN_S
    assert reads <= 7 + size / RATE / PACE_MAX_S


def test_pauses_follow_a_link_that_became_faster() -> None:
    pacer = ReadPauses()
    receive(pacer, 1 << 20, 0.0)
    late = [receive(pacer, 20_000, 10.0 * n, 10 * RATE)[0] for n in range(1, 15)]
    assert late[0] > PACE_MIN_S
    assert late[-1] <= PACE_MIN_S


def test_a_message_that_arrives_in_one_piece_never_waits() -> None:
    pacer = ReadPauses()
    receive(pacer, 1 << 20, 0.0)
    assert pacer.pause_s(300, 0, 10.0) == 0.0
