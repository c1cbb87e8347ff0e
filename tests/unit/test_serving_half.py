"""The device half that serves: what it answers, what it forwards, and when requests are given to it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from edge_agent.requests import Requests
from edgebed.datasets.shard import About, Shard, single_rows
from edgebed.device.core import Cancelled
from edgebed.device.phases import PhaseLog
from edgebed.errors import UsageError
from edgebed.methods.base import Batch, Outgoing, find_half
from edgebed.methods.parts.exits import exit_logits
from edgebed.methods.parts.serving import LOT, arrival_times_ns
from edgebed.models.staged import Weights
from edgebed.wire.messages import Assignment
from edgebed.wire.settings import Arrivals
from orchestrator.testing.rounds import CLASSES, CPU, SHAPE, shard, small_model


class Line:
    """Requests one after the other, on a clock that only ever counts its readings."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x, self.arrived_ns, self.now = x, 0, 0

    def now_ns(self) -> int:
        self.now += 1
        return self.now

    def answered_ns(self) -> int:
        return self.now_ns()

    def __iter__(self) -> Iterator[Batch]:
        for number in range(len(self.x)):
            self.arrived_ns = 1000 + number
            yield self.x[number : number + 1], torch.zeros(1, dtype=torch.int64)


def assignment(stages: int, threshold: float, count: int) -> Assignment:
    return Assignment(
        device="n",
        model={},
        classes=CLASSES,
        input_shape=SHAPE,
        stages=stages,
        objective="serve",
        arrivals=Arrivals(1.0, count),
        options={"threshold": threshold, "first": 100},
    )


def leaf(threshold: float, x: torch.Tensor) -> list[Outgoing]:
    return list(find_half("serve")(small_model(), assignment(1, threshold, len(x)), Line(x)))


def test_a_leaf_that_is_sure_of_all_reports_in_lots_and_forwards_nothing() -> None:
    x, _ = shard("a", LOT + 3)
    sent = leaf(0.0, x)
    assert [len(out.tensors["request"]) for out in sent] == [LOT, 3]
    assert torch.cat([out.tensors["request"] for out in sent]).tolist() == list(range(100, 100 + LOT + 3))
    logits = exit_logits(small_model(), small_model().weights(), (1,), x, CPU)[0]
    assert torch.cat([out.tensors["prediction"] for out in sent]).tolist() == logits.argmax(1).tolist()
    arrived, began, done = sent[0].tensors["times"][0].tolist()
    assert (arrived, done - began) == (1000, 1)


def test_a_leaf_that_is_never_sure_forwards_the_features_of_each() -> None:
    x, _ = shard("a", 3)
    sent = leaf(2.0, x)
    expected = small_model().eval().lower(1)(x).detach()
    assert not any(out.wait for out in sent)
    torch.testing.assert_close(torch.cat([out.tensors["features"] for out in sent]), expected)
    assert [int(out.tensors["cut"]) for out in sent] == [1, 1, 1]
    assert [int(out.tensors["request"]) for out in sent] == [100, 101, 102]


def test_a_node_above_goes_on_where_the_leaf_stopped_until_a_reply_without_features() -> None:
    x, _ = shard("a", 2)
    forwarded = leaf(2.0, x)
    half = find_half("serve")(small_model(), assignment(4, 0.0, 0), Line(x[:0]))
    ready = half.send(None)
    assert (ready.tensors, ready.wait) == ({}, True)
    answers = [half.send(out.tensors).tensors for out in forwarded]
    logits = exit_logits(small_model(), small_model().weights(), (4,), x, CPU)[0]
    assert [int(each["prediction"]) for each in answers] == logits.argmax(1).tolist()
    with pytest.raises(StopIteration) as stop:
        half.send({})
    assert stop.value.value.batches == 2


def test_a_node_in_the_middle_forwards_features_of_its_own_cut() -> None:
    x, _ = shard("a", 1)
    (out,) = leaf(2.0, x)
    half = find_half("serve")(small_model(), assignment(3, 2.0, 0), Line(x[:0]))
    half.send(None)
    onward: Weights = half.send(out.tensors).tensors
    torch.testing.assert_close(onward["features"], small_model().eval().lower(3)(x).detach())
    assert (int(onward["cut"]), int(onward["request"])) == (3, 100)


def test_it_says_what_it_lacks() -> None:
    x, _ = shard("a", 2)
    with pytest.raises(UsageError, match="arrivals"):
        next(find_half("serve")(small_model(), assignment(1, 0.5, 2), [(x, x)]))  # type: ignore[list-item]
    bare = Assignment("n", {}, CLASSES, SHAPE, 1, "serve", arrivals=Arrivals())
    with pytest.raises(UsageError, match="threshold"):
        next(find_half("serve")(small_model(), bare, Line(x)))


# ---- arrivals ----


def test_arrivals_are_a_poisson_process_that_the_seed_fixes() -> None:
    times = arrival_times_ns(Arrivals(50.0, 4000), 3)
    assert times == arrival_times_ns(Arrivals(50.0, 4000), 3) != arrival_times_ns(Arrivals(50.0, 4000), 4)
    gaps = torch.tensor(times).diff().double() / 1e9
    assert times == sorted(times)
    assert float(gaps.mean()) == pytest.approx(1 / 50, rel=0.05)
    assert float(gaps.std()) == pytest.approx(1 / 50, rel=0.08), "of an exponential both are 1 / rate"


def test_all_samples_come_once_before_any_comes_again() -> None:
    rows = single_rows(5, 12, 1)
    assert sorted(rows[:5]) == sorted(rows[5:10]) == [0, 1, 2, 3, 4]
    assert len(rows) == 12


class Clock:
    """Time that passes when somebody waits."""

    def __init__(self) -> None:
        self.ns, self.cancelled = 0, threading.Event()
        self.waits: list[float] = []

    def check(self) -> None:
        if self.cancelled.is_set():
            raise Cancelled("no longer wanted")

    def wait(self, seconds: float) -> None:
        self.check()
        self.waits.append(seconds)
        self.ns += round(seconds * 1e9)

    def progress(self) -> None: ...
    def pace(self) -> None: ...
    def hold(self) -> None: ...


def requests(clock: Clock, arrivals: Arrivals, phases: PhaseLog) -> Requests:
    x = torch.arange(4, dtype=torch.float32).view(4, 1, 1, 1)
    data = Shard(x, torch.tensor([0, 1, 2, 3]), About(1, (0.0,), (1.0,), 4), "")
    return Requests(data, arrivals, 7, phases, clock, lambda: clock.ns)


def test_a_request_is_given_out_when_it_arrives_and_late_when_the_device_was_busy() -> None:
    clock = Clock()
    phases = PhaseLog(lambda: clock.ns)
    phases.enter("compute")
    arrivals = Arrivals(2.0, 3)
    due = arrival_times_ns(arrivals, 7)
    waiting = requests(clock, arrivals, phases)
    seen = []
    for x, _ in waiting:
        seen.append((waiting.arrived_ns, waiting.now_ns(), int(x)))
        clock.ns = due[-1] + 10  # the first keeps it busy until all have come
    assert [at for at, _, _ in seen] == due
    assert seen[0][1] >= due[0]
    assert [now for _, now, _ in seen[1:]] == [due[-1] + 10] * 2
    assert [row for _, _, row in seen] == single_rows(4, 3, 7)
    assert waiting.waited_s == pytest.approx(due[0] / 1e9)
    assert phases.name == "compute"
    assert "request_wait" in [phase.name for phase in phases.pending()[1]]


def test_waiting_ends_when_the_task_is_cancelled() -> None:
    clock = Clock()
    clock.cancelled.set()
    with pytest.raises(Cancelled):
        next(iter(requests(clock, Arrivals(0.001, 1), PhaseLog(lambda: clock.ns))))
