"""The run loop with lanes, driven by hand: one counter of rounds, the newest weights, resume, and errors."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from edgebed.errors import RunError
from edgebed.methods.base import Contribution, DeviceView, Method, Plan, Schedule
from edgebed.methods.parts.evaluation import Score
from edgebed.models.staged import Weights
from edgebed.wire.messages import Assignment
from orchestrator.experiment import Training
from orchestrator.records.types import Evaluated, Fault, Record, RoundFinished, RoundStarted
from orchestrator.rounds.evaluator import LocalEvaluator
from orchestrator.rounds.job import RoundJob, RoundResult
from orchestrator.rounds.loop import Loop
from orchestrator.rounds.machine import Leave
from orchestrator.rounds.progress import Progress
from tests.all_rounds import run_all

VIEWS = [DeviceView(name, 10, 1.0, 10**9, 10**9) for name in ("a", "b")]


class Counting(Method):
    """A lane for each device; a merge adds 1 to the weights it is given."""

    def lanes(self, devices: Sequence[DeviceView]) -> dict[str, list[DeviceView]]:
        return {device.name: [device] for device in devices}

    def plan(self, round: int, devices: Sequence[DeviceView], schedule: Schedule) -> Plan:
        return Plan({device.name: Assignment(device.name, {}, 2, (1,), 1, "output") for device in devices})

    def merge(self, weights: Weights, contributions: Sequence[Contribution]) -> Weights:
        return {"w": weights["w"] + 1}

    def evaluate(self, weights: Weights, x: Tensor, y: Tensor, accelerator: torch.device) -> Score:
        return Score(float(weights["w"]) / 100, 0.0)


class ByHand:
    """Rounds end when the test says so, by device; `b` never does by itself."""

    def __init__(self) -> None:
        self.quorums: list[int | None] = []
        self.hold_b = asyncio.Event()
        self.fail: Exception | None = None
        self.cancelled: list[str] = []
        self.bad: dict[str, tuple[str, str]] = {}  # devices whose work does not come, and why

    async def run(self, job: RoundJob) -> RoundResult:
        (device,) = job.plan.assignments
        self.quorums.append(job.quorum)
        try:
            await (self.hold_b.wait() if device == "b" else asyncio.sleep(0))
        except asyncio.CancelledError:
            self.cancelled.append(device)
            raise
        if self.fail is not None:
            raise self.fail
        if device in self.bad:
            return RoundResult([], [], "void", job.number, {device: Leave(device, *self.bad[device])})
        return RoundResult([Contribution(device, 1, job.plan.assignments[device], {}, {})], [], "all done", job.number)


class Present:
    async def ready(self) -> list[DeviceView]:
        return VIEWS


class Harness:
    def __init__(self, rounds: int, **training: Any) -> None:
        self.rounds, self.records = ByHand(), list[Record]()
        self.saved: list[tuple[float, int]] = []
        self.told: list[tuple[int, float, float]] = []  # round, accuracy, seconds of all rounds
        self.loop = Loop(
            method=Counting(),
            pool=self.rounds,
            devices=Present(),  # type: ignore[arg-type]
            training=Training(**{"rounds": rounds, "quorum": 2} | training),
            environment=None,
            evaluator=LocalEvaluator(torch.device("cpu")),
            test=(torch.zeros(1), torch.zeros(1)),
            save=lambda weights, progress, *_: self.saved.append((float(weights["w"]), progress.round)),
            record=self.records.append,
            watch=self.watch,
        )

    def watch(self, progress: Progress, result: RoundResult, seconds: float) -> None:
        self.told.append((result.round, progress.accuracy, progress.elapsed_s))
        if result.round == 4:
            self.rounds.hold_b.set()

    async def run(self, progress: Progress | None = None) -> str:
        async with asyncio.timeout(10):
            return await run_all(self.loop, {"w": torch.zeros(())}, progress or Progress())

    def started(self) -> list[int]:
        return [record.round for record in self.records if isinstance(record, RoundStarted)]


async def test_rounds_have_one_counter_and_every_merge_builds_on_the_newest_weights() -> None:
    made, progress = Harness(6), Progress()
    assert await made.run(progress) == "rounds done"
    assert made.started() == [0, 1, 2, 3, 4, 5]
    assert made.saved[-1] == (6.0, 6), "six merges, none lost"
    assert [r.accuracy for r in made.records if isinstance(r, Evaluated)][-1] == pytest.approx(0.06)
    assert progress.accuracy == pytest.approx(0.06)
    assert progress.elapsed_s > 0
    assert set(made.rounds.quorums) == {1}, "a lane of one device cannot have a quorum of two"


async def test_a_round_is_told_with_the_accuracy_and_the_seconds_that_the_records_have() -> None:
    made = Harness(6)
    await made.run()
    assert sorted(number for number, _, _ in made.told) == [0, 1, 2, 3, 4, 5]
    assert made.told[-1][1] == pytest.approx(0.06), "the last line has the accuracy of the last weights"
    begin_ns = min(r.at_ns for r in made.records if isinstance(r, RoundStarted))
    ends_s = {r.round: (r.at_ns - begin_ns) / 1e9 for r in made.records if isinstance(r, RoundFinished)}
    assert {number: elapsed_s for number, _, elapsed_s in made.told} == pytest.approx(ends_s)


async def test_a_resumed_run_goes_on_with_the_next_number() -> None:
    made = Harness(6)
    made.rounds.hold_b.set()
    await made.run(Progress(round=4, elapsed_s=50.0))
    assert made.started() == [4, 5]


async def test_the_target_cancels_the_round_that_still_goes_on() -> None:
    made = Harness(1000, stop_at_target=True, target_accuracy=0.03)
    made.watch = lambda *_: None  # type: ignore[method-assign]
    made.loop.watch = made.watch
    assert await made.run() == "target reached"
    assert "b" in made.rounds.cancelled
    assert len(made.started()) < 1000


async def test_an_error_in_one_lane_ends_the_run_and_cancels_the_others() -> None:
    made = Harness(6)
    made.rounds.fail = RunError("broken")
    with pytest.raises(RunError, match="broken"):
        await made.run()
    assert made.rounds.cancelled == ["b"]


async def test_a_device_whose_rounds_are_void_is_left_out_and_named_and_the_others_go_on() -> None:
    made = Harness(10)
    made.rounds.bad = {"b": ("failed", "KeyError")}
    made.rounds.hold_b.set()
    assert await made.run() == "rounds done"
    assert made.started() == list(range(10))
    faults = [record for record in made.records if isinstance(record, Fault)]
    assert [fault.device for fault in faults] == ["b"]
    assert "left out" in faults[0].what
    assert "KeyError" in faults[0].what
    rounds_of_b = [r for r in made.records if isinstance(r, RoundStarted) and r.lane == "b"]
    assert len(rounds_of_b) == 3
    assert made.saved[-1] == (7.0, 10), "all rounds but the three void ones were merged"


async def test_a_run_that_ends_before_anything_was_merged_says_so() -> None:
    made = Harness(2)
    made.rounds.bad = {"a": ("failed", "no memory"), "b": ("lost", "its agent died")}
    made.rounds.hold_b.set()
    with pytest.raises(RunError, match=r"no work was merged in 2 rounds: .* missing in the last one: [ab] \("):
        await made.run()
    assert made.saved[-1] == (0.0, 2)


async def test_a_run_ends_when_nobody_is_left_and_the_advice_fits_a_quorum_of_one() -> None:
    made = Harness(100, quorum=1)
    made.rounds.bad = {"a": ("failed", "no memory"), "b": ("lost", "its agent died")}
    made.rounds.hold_b.set()
    with pytest.raises(RunError, match="no device is left") as ended:
        await made.run()
    assert "a (failed: no memory), b (lost: its agent died)" in str(ended.value)
    assert "training.quorum" not in ended.value.hint
    assert len(made.started()) == 6
