"""The orchestrator's judgement of a held device, from arrivals and sizes that it knows."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from edgebed.device.pieces import RECORDED
from edgebed.limits.spec import Limits
from edgebed.link.peer import Sent
from edgebed.pacing import Earned
from edgebed.wire.frames import WIRE_SHARE
from edgebed.wire.messages import Assignment, Cost
from orchestrator.rounds.lateness import Arrival, Lateness, TaskSeen, lateness

CPUS, BATCHES, BATCH_S, BYTES = 0.5, 4, 0.1, 10_000
LIMITS = Limits(cpus=CPUS, uplink_bit_s=8_000_000, downlink_bit_s=8_000_000, memory_mib=256, latency_ms=5.0)
LINK_S = BYTES / 1e6 / WIRE_SHARE + 0.005
START_S = 100.0
DUE_S = START_S + BATCHES * BATCH_S / CPUS
"""When a device of the reference begins to send its update: it has four batches of 0.1 CPU s, and 0.5 CPU."""


def cost(cpu_s: float) -> Cost:
    return Cost(((1, cpu_s),), RECORDED)


COSTS = {
    **{kind: Cost(((1, BATCH_S), (64, BATCH_S)), RECORDED) for kind in ("first batch", "batch")},
    **dict.fromkeys(("receive", "decode", "finish", "update", "send"), cost(0.0)),
}


def ns(at_s: float) -> int:
    return round(at_s * 1e9)


def seen(sent_s: float = DUE_S, **changes: Any) -> TaskSeen:
    """A task of four batches whose update left the device at `sent_s`."""
    assignment = Assignment("a", {}, 10, (1, 8, 8), 3, "output", batch_size=32, epochs=1)
    update = Arrival(ns(sent_s + LINK_S), ns(sent_s + LINK_S), ns(sent_s + LINK_S), BYTES, BYTES)
    task = TaskSeen(assignment, 32 * BATCHES, COSTS, Sent(ns(START_S), ns(START_S), 500, 0), 500, (), {}, update)
    return msgspec.structs.replace(task, **changes)


def earned(*changes: tuple[float, float]) -> Earned:
    found = Earned(0.0)
    for at_s, cpus in changes or ((0.0, CPUS),):
        found.set(cpus, at_s)
    return found


def judged(task: TaskSeen, own: Earned | None = None) -> Lateness:
    found = lateness(task, own or earned(), LIMITS)
    assert found is not None
    return found


def test_a_device_that_holds_is_neither_late_nor_early() -> None:
    found = judged(seen())
    assert found.late_s == pytest.approx(0.0, abs=1e-6)
    assert found.early_s == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("by_s", [0.05, 0.3])
def test_what_comes_later_is_late_by_as_much(by_s: float) -> None:
    assert judged(seen(DUE_S + by_s)).late_s == pytest.approx(by_s, abs=1e-6)


def test_a_device_that_skips_a_hold_is_early_by_as_much() -> None:
    skipped_s = BATCH_S / CPUS
    found = judged(seen(DUE_S - skipped_s))
    assert found.early_s == pytest.approx(skipped_s, abs=0.002)
    assert found.late_s == 0.0


def test_a_hold_that_is_shorter_than_the_first_chunk_takes_is_seen() -> None:
    size = 1 << 20
    took_s = 8 * size / WIRE_SHARE / LIMITS.uplink_bit_s + 0.005
    sent_s = DUE_S - BATCH_S / CPUS
    update = Arrival(*(ns(sent_s + took_s) for _ in range(3)), size, size)
    assert 0 < DUE_S - sent_s < took_s  # it arrives after a device that holds would have begun to send
    assert judged(seen(update=update)).early_s > 0.05


def test_a_device_that_got_fewer_cpus_in_mid_task_is_due_later() -> None:
    halved = earned((0.0, CPUS), (START_S + 0.4, CPUS / 2))
    due_s = START_S + 0.4 + 2 * BATCH_S / (CPUS / 2)
    assert judged(seen(due_s), halved).late_s == pytest.approx(0.0, abs=1e-6)
    assert judged(seen(DUE_S), halved).early_s > 0.3


def test_a_frozen_device_earns_nothing_and_is_not_early_without_end() -> None:
    frozen = earned((0.0, CPUS), (START_S + 0.4, 0.0), (START_S + 1.4, CPUS))
    assert judged(seen(DUE_S + 1.0), frozen).late_s == pytest.approx(0.0, abs=1e-6)
    for_ever = earned((0.0, CPUS), (START_S + 0.4, 0.0))
    assert judged(seen(), for_ever).early_s == 0.0


@pytest.mark.parametrize(
    "changes",
    [
        {"costs": {kind: each for kind, each in COSTS.items() if kind != "batch"}},
        {"costs": {kind: each for kind, each in COSTS.items() if kind != "receive"}},
        {"costs": COSTS | {"batch": Cost(((1, BATCH_S),), RECORDED, (0.5, 1.0, 1.2, 1.5, 2.0), 0.0)}},
        {"uploads": (Arrival(1, 2, 3, 4, 5),)},
    ],
    ids=["batches by the index", "no cost of transfers", "costs that vary", "uploads that are not one a batch"],
)
def test_what_the_orchestrator_does_not_know_is_not_judged(changes: dict[str, Any]) -> None:
    assert lateness(seen(**changes), earned(), LIMITS) is None
