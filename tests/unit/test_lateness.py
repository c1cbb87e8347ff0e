"""The orchestrator's judgement of a held device, from arrivals and sizes that it knows."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from edgebed.device.pieces import RECORDED
from edgebed.limits.spec import Limits
from edgebed.link.peer import Sent
from edgebed.methods.fjord import worth
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


def test_batches_are_due_by_what_they_are_worth() -> None:
    """FjORD: of four batches of 32 samples two have a width that costs a quarter."""
    linear = COSTS | {kind: Cost(((1, 0.001), (64, 0.064)), RECORDED) for kind in ("first batch", "batch")}
    told = {"sizes": [{}, {}], "costs": [0.25, 1.0], "distil": False}
    works = (
        msgspec.structs.replace(seen().assignment, objective="fjord", options=told, seed=seed) for seed in range(50)
    )
    work = next(each for each in works if sorted(worth(each, n, 32) for n in range(4)) == [8, 8, 32, 32])
    found = judged(seen(START_S + 0.08 / CPUS, assignment=work, costs=linear))
    assert (found.late_s, found.early_s) == pytest.approx((0.0, 0.0), abs=1e-6)
    assert judged(seen(START_S + 0.128 / CPUS, assignment=work, costs=linear)).late_s > 0.04


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


# ---- tasks that upload with every batch ----

PIECE_S, SEND_S = {"forward": 0.05, "rest": 0.03, "encode": 0.01}, 0.002
UPLOADING = COSTS | {
    kind: Cost(((1, each), (1 << 20, each)), RECORDED)
    for name, each in {**PIECE_S, "send": SEND_S, "reply": 0.0}.items()
    for kind in (name, f"first {name}")
}
LATENCY_S = LIMITS.latency_ms / 1e3


def uploading(
    *, held_up: dict[int, float] | None = None, acked_later: dict[int, float] | None = None, slots: int = 2,
    reply_s: dict[int, float] | None = None, skipped_s: float = 0.0,
) -> TaskSeen:  # fmt: skip
    """A task of four batches with uploads, as a device of the reference plays it.

    Args:
        held_up: seconds by which an upload (4: the update) begins too late, by its number; nothing else shifts.
        acked_later: seconds that the orchestrator takes to acknowledge an upload.
        reply_s: seconds from an upload's arrival to its reply, which the device waits for.
        skipped_s: seconds of holding that the device leaves out before its third upload.
    """
    held_up, acked_later, reply_s = held_up or {}, acked_later or {}, reply_s or {}
    at_s, free_s, uploads, replies = START_S, 0.0, list[Arrival](), dict[int, Sent]()

    def sent(ready_s: float, number: int) -> Arrival:
        begun_s = max(ready_s + SEND_S / CPUS, free_s) + held_up.get(number, 0.0)
        last_s = begun_s + LINK_S
        return Arrival(ns(last_s), ns(last_s), ns(last_s + acked_later.get(number, 0.0)), BYTES, BYTES)

    for number in range(BATCHES):
        at_s += (PIECE_S["forward"] + PIECE_S["encode"]) / CPUS - (skipped_s if number == 2 else 0.0)
        if number >= slots:
            at_s = max(at_s, uploads[number - slots].acked_ns / 1e9 + LATENCY_S)
        uploads.append(sent(at_s, number))
        free_s = uploads[-1].acked_ns / 1e9 + LATENCY_S
        at_s += SEND_S / CPUS
        if number in reply_s:
            done_s = uploads[-1].last_ns / 1e9 + reply_s[number]
            replies[number], at_s = Sent(ns(done_s), ns(done_s), 500, 0), max(at_s, done_s)
        at_s += PIECE_S["rest"] / CPUS
    assignment = Assignment("a", {}, 10, (1, 8, 8), 3, "head", uploads=("features",), batch_size=32, epochs=1)
    return msgspec.structs.replace(
        seen(), assignment=assignment, costs=UPLOADING, uploads=uploads, replies=replies,
        update=sent(at_s, BATCHES),
    )  # fmt: skip


@pytest.mark.parametrize("later", [{}, {1: 0.4}, {0: 0.5, 3: 0.3}], ids=["at once", "a slow server", "twice slow"])
def test_uploads_of_a_device_that_holds_are_in_time_whatever_the_server_takes(later: dict[int, float]) -> None:
    for replies in ({}, {0: 0.2, 2: 0.1}):
        found = judged(uploading(acked_later=later, reply_s=replies))
        assert found.late_s == pytest.approx(0.0, abs=1e-6)
        assert found.early_s == 0.0


def test_a_late_upload_is_late_though_the_device_makes_up_for_it() -> None:
    for number in range(BATCHES + 1):
        assert judged(uploading(held_up={number: 0.003})).late_s == pytest.approx(0.003, abs=1e-6)


def test_what_was_lost_before_a_reply_is_late_with_what_is_lost_after_it() -> None:
    """The device goes on from the reply, which an upload that was late brought as late."""
    replies = {0: 0.2}
    assert judged(uploading(held_up={0: 0.3}, reply_s=replies)).late_s == pytest.approx(0.3, abs=1e-6)
    found = judged(uploading(held_up={0: 0.3, BATCHES: 0.2}, reply_s=replies))
    assert found.late_s == pytest.approx(0.5, abs=1e-6)


def test_a_place_in_the_queue_is_waited_for() -> None:
    """The third upload needs the acknowledgement of the first: a device that does not wait for it is early."""
    later = {0: 0.5}
    assert judged(uploading(acked_later=later)).late_s == pytest.approx(0.0, abs=1e-6)
    hasty = judged(uploading(acked_later=later, slots=3))
    assert hasty.early_s > 0.1


def test_an_upload_before_its_batch_can_have_been_computed_is_early() -> None:
    assert judged(uploading(skipped_s=0.09)).early_s == pytest.approx(
        0.09 - SEND_S / CPUS - 0.1 * (LINK_S - LATENCY_S), abs=1e-6
    )


def test_too_few_uploads_are_not_judged() -> None:
    task = uploading()
    assert lateness(msgspec.structs.replace(task, uploads=task.uploads[:3]), earned(), LIMITS) is None


# ---- the beginning of a task ----


def test_a_model_that_is_built_or_was_built_before_is_neither_late_nor_early() -> None:
    costs = COSTS | {"decode": cost(0.1 / 500), "build": cost(0.3 / 500)}  # of a body of 500 bytes
    for took_s in (0.1, 0.3):
        found = judged(seen(DUE_S + took_s / CPUS, costs=costs))
        assert found.late_s == pytest.approx(0.0, abs=1e-6)
        assert found.early_s == pytest.approx(0.0, abs=1e-6)


def test_a_task_that_comes_slowly_is_begun_when_all_of_it_is_there() -> None:
    slow = Sent(ns(START_S), ns(START_S + 0.5), 500, 0)
    assert judged(seen(DUE_S + 0.5, sent=slow)).late_s == pytest.approx(0.0, abs=1e-6)
    assert judged(seen(DUE_S + 0.8, sent=slow)).late_s == pytest.approx(0.3, abs=1e-6)
