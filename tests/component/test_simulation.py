"""Whole runs on the virtual clock: the weights of a real fleet, records that add up, the same ones every time."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Generator, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from edgebed.device import core
from edgebed.methods.base import HALVES, Batch, DeviceHalf, Outgoing, Trained
from edgebed.models.staged import StagedModel, Weights
from edgebed.wire.messages import Assignment, Header, Task
from orchestrator.experiment import SimulatedFault
from orchestrator.fleet.spec.profile import Limits, ProfileSpec
from orchestrator.records.host_records import ServerStep
from orchestrator.records.run_index import sort
from orchestrator.records.timeline.timeline import timelines
from orchestrator.records.types import (
    DeviceJoined,
    DeviceOut,
    RoundFinished,
    TaskDelivered,
    UpdateReceived,
    UploadReceived,
)
from orchestrator.rounds.driver import RoundDriver
from orchestrator.scenario.agenda import Scenario
from orchestrator.simulation.batched import BatchedTrainer, StackedPart
from tests.component._fleet import buggy, fleet, model, training, warm_up_once
from tests.component._simulated import play

THREE = {"a": 24, "b": 17, "c": 30}
NARROW = ProfileSpec("narrow", Limits(cpus=1.0, uplink_bit_s=10_000, downlink_bit_s=10**9, memory_mib=256))
METHODS = [
    {"name": "dtfl", "tier": 3},
    {"name": "dtfl", "tier": 3, "overlap": False},
    {"name": "fedavg"},
    {"name": "splitfed", "cut": 2},
    {"name": "fjord", "distil": True},
    {"name": "heterofl"},
]
SHARED = [{"name": "fedgkt", "cut": 2}, {"name": "s2fl", "cuts": [2], "sliding": False, "group": 3}]
"""Methods whose devices share a server half; without S²FL's sliding, for its cuts follow from what was measured.
(FedAT's rounds side by side merge in the order in which they end, so in another one on another clock.)"""


Recorded = dict[tuple[str, int], list[object]]
"""By device and round: the steps of the device core, and its result."""


def recorded(module: str, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """What the device core does from now on, driven by this module."""
    seen: Recorded = {}
    warm_up_once()  # its tasks are no part of the run

    def recording(task: Task, *rest: Any) -> core.CoreSteps:
        steps, answer = core.run_task(task, *rest), None
        taken = seen.setdefault((task.assignment.device, task.round), [])
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as stop:
                taken.append(stop.value)
                return stop.value
            taken.append(without_task(step))
            answer = yield step

    monkeypatch.setattr(f"{module}.run_task", recording)
    return seen


def without_task(step: core.CoreStep) -> object:
    """The step without the id of its task, which is unique over all runs."""
    if not isinstance(step, core.SendUpload):
        return step
    return step.header.batch, step.header.samples, bytes(step.body), step.wait


@pytest.mark.parametrize("spec", METHODS + SHARED, ids=lambda spec: str(spec["name"]))
async def test_a_simulation_trains_to_the_weights_of_a_real_fleet(
    spec: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And every device does the same steps, with the same bytes."""
    (tmp_path / "sim").mkdir()
    simulated = recorded("orchestrator.simulation.device", monkeypatch)
    by_agents = recorded("edge_agent.training", monkeypatch)
    played = await asyncio.to_thread(play, tmp_path / "sim", THREE, spec, training())
    async with fleet(tmp_path, THREE) as real:
        weights = await real.play(spec, training())
    assert simulated == by_agents
    assert {device for device, _ in simulated} == set(THREE)
    assert weights.keys() == played.saved[-1].keys()
    for name, value in weights.items():
        assert torch.equal(value, played.saved[-1][name]), name


def test_a_device_that_picks_its_own_work_pays_for_what_it_picked(tmp_path: Path) -> None:
    profiles = {
        name: ProfileSpec(name, Limits(cpus=cpus, uplink_bit_s=10**9, downlink_bit_s=10**9, memory_mib=256))
        for name, cpus in {"slow": 0.2, "fast": 2.0}.items()
    }
    devices = {"slow": 24, "fast": 24}
    played = play(tmp_path, devices, {"name": "fedpmt", "chooser": "device"}, training(), profiles=profiles)
    stages = len(model())
    picked = {update.device: update.report.notes["train_from"] for update in played.of(UpdateReceived)}
    assert picked["slow"] > picked["fast"] == 0
    for update in played.of(UpdateReceived):
        each = 0.1 + 0.3 * (1 - picked[update.device] / stages)
        assert update.report.compute_cpu_s == pytest.approx(each * update.report.batches)


@pytest.mark.parametrize(("server_slots", "busy"), [(1, 1), (2, 2), (0, 3)])
def test_no_more_server_halves_train_at_once_than_there_are_slots(server_slots: int, busy: int, tmp_path: Path) -> None:
    spec = {"name": "splitfed", "cut": 2}
    played = play(tmp_path, dict.fromkeys("abc", 24), spec, training(), server_slots=server_slots)
    steps = played.of(ServerStep)
    assert max(sum(o.start_ns <= step.start_ns < o.end_ns for o in steps) for step in steps) == busy


def test_batched_it_trains_to_the_same_within_tolerance(tmp_path: Path) -> None:
    same = dict.fromkeys("abc", 24)
    spec = {"name": "dtfl", "tier": 3}
    alone, together = (play(tmp_path, same, spec, training(), batched=batched) for batched in (False, True))
    assert (alone.together, together.alone) == (0, 0)
    for name, value in alone.saved[-1].items():
        torch.testing.assert_close(value, together.saved[-1][name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("spec", METHODS, ids=lambda spec: str(spec["name"]))
def test_every_second_of_every_device_has_a_name(spec: dict[str, object], tmp_path: Path) -> None:
    played = play(tmp_path, THREE, spec, training())
    rounds = list(timelines(sort(played.records)))
    assert len(rounds) == 2
    for each in rounds:
        for device in each.devices.values():
            assert device.residual < 1e-6
            assert device.sums.get("unreported", 0) == 0
            assert device.sums["compute"] > 0


@pytest.mark.parametrize("spec", [{"name": "fedavg"}, {"name": "dtfl", "tier": 3}], ids=lambda spec: str(spec["name"]))
def test_an_error_that_nobody_foresaw_costs_the_device_its_round(
    spec: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective = {"fedavg": "output", "dtfl": "head"}[str(spec["name"])]
    monkeypatch.setitem(HALVES, objective, buggy("b", HALVES[objective]))
    played = play(tmp_path, THREE, spec, training())
    out = played.of(DeviceOut)
    assert [(r.round, r.device, r.how, r.why) for r in out] == [(n, "b", "failed", "KeyError: 'a bug'") for n in (0, 1)]
    assert all('raise KeyError("a bug")' in r.trace for r in out)
    assert [r.merged for r in played.of(RoundFinished)] == [("a", "c")] * 2


def test_after_a_refused_update_a_device_sends_nothing_as_an_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, admit = list[str](), RoundDriver.admit

    def noted(driver: RoundDriver, peer: str, header: Header, size: int) -> None:
        sent.append(f"{peer} {type(header).__name__}")
        admit(driver, peer, header, size)

    monkeypatch.setattr(RoundDriver, "admit", noted)
    monkeypatch.setitem(HALVES, "output", too_large("b", HALVES["output"]))
    played = play(tmp_path, THREE, {"name": "fedavg"}, training(rounds=1))
    assert sorted(sent) == ["a Update", "b Update", "c Update"]
    [out] = played.of(DeviceOut)
    assert (out.device, out.how, "bytes" in out.why) == ("b", "refused", True)


def too_large(device: str, inner: DeviceHalf) -> DeviceHalf:
    """The half, whose weights on `device` have one more tensor, of 1 MB."""

    def half(
        model: StagedModel, assignment: Assignment, batches: Iterable[Batch]
    ) -> Generator[Outgoing, Weights | None, Trained]:
        trained = yield from inner(model, assignment, batches)
        more = {"more": torch.zeros(1 << 18)} if assignment.device == device else {}
        return msgspec.structs.replace(trained, weights={**trained.weights, **more})

    return half


def test_an_error_in_halves_that_are_stacked_makes_them_train_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(self: BatchedTrainer) -> list[StackedPart]:
        raise KeyError("a bug")

    monkeypatch.setattr(BatchedTrainer, "train", train)
    played = play(tmp_path, dict.fromkeys("abc", 24), {"name": "fedavg"}, training(rounds=1), batched=True)
    assert (played.together, played.alone) == (0, 3)
    assert not played.of(DeviceOut)


def test_the_same_seed_gives_the_same_records(tmp_path: Path) -> None:
    spec = {"name": "dtfl", "tiers": 3}
    first, second = (play(tmp_path, THREE, spec, training()) for _ in range(2))
    assert [named(record) for record in first.records] == [named(record) for record in second.records]


def named(record: object) -> str:
    """A record without the end of its task ids, which are unique over all runs."""
    return re.sub(r"(run/[0-9]+/[a-z]+)/[0-9a-f]+", r"\1", msgspec.json.encode(record).decode())


def test_times_are_those_of_the_costs(tmp_path: Path) -> None:
    """One device, FedAvg, three batches: download, decode 0.01, 3 × 0.4, encode 0.01, upload."""
    played = play(tmp_path, {"a": 24}, {"name": "fedavg"}, training(rounds=1))
    (finished,), (update,) = played.of(RoundFinished), played.of(UpdateReceived)
    link = 0.002 + 8 * (update.bytes + played.of(TaskDelivered)[0].bytes) / 1e9
    assert finished.seconds == pytest.approx(0.01 + 1.2 + 0.01 + link, abs=1e-6)
    assert update.report.compute_s == pytest.approx(1.2)


def test_without_overlap_a_device_computes_first_and_sends_then(tmp_path: Path) -> None:
    """Eight batches at 1 CPU: download, decode 0.01, 8 × (0.4 + 0.01 for encoding), encode 0.01; then the features and
    the update, one after the other: compute and communication add up, as in eq. 5. Streaming, most of it is hidden."""
    rounds = {}
    for overlap in (True, False):
        spec = {"name": "dtfl", "tier": 1, "overlap": overlap}
        played = play(tmp_path, {"a": 64}, spec, training(rounds=1), profiles={"a": NARROW})
        rounds[overlap] = played
    finished, update, uploads = (rounds[False].of(kind) for kind in (RoundFinished, UpdateReceived, UploadReceived))
    sent = sum(each.bytes for each in uploads) + update[0].bytes
    own_s = 0.01 + 8 * 0.41 + 0.01
    assert uploads[0].first_ns / 1e9 > own_s
    assert finished[0].seconds == pytest.approx(own_s + 8 * sent / 10_000, rel=0.01)
    assert update[0].report.blocked_s == 0
    assert rounds[True].of(RoundFinished)[0].seconds < finished[0].seconds - 0.9 * 8 * 0.4
    for name, value in rounds[True].saved[-1].items():
        assert torch.equal(value, rounds[False].saved[-1][name]), name


def test_a_narrow_uplink_blocks_the_device_and_uploads_arrive_one_by_one(tmp_path: Path) -> None:
    played = play(tmp_path, {"a": 64}, {"name": "dtfl", "tier": 1}, training(rounds=1), profiles={"a": NARROW})
    uploads = played.of(UploadReceived)
    gaps = [b.at_ns - a.at_ns for a, b in pairwise(uploads)]
    wire = [8 * upload.bytes / 10_000 for upload in uploads[1:]]
    assert [gap / 1e9 for gap in gaps] == [pytest.approx(seconds, rel=1e-3) for seconds in wire]
    assert played.of(UpdateReceived)[0].report.blocked_s > sum(wire) / 2


def test_server_halves_take_turns(tmp_path: Path) -> None:
    played = play(tmp_path, THREE, {"name": "dtfl", "tier": 2}, training(rounds=1))
    steps = sorted(played.of(ServerStep), key=lambda step: step.start_ns)
    assert all(a.end_ns <= b.start_ns for a, b in pairwise(steps))
    assert {(step.end_ns - step.start_ns) for step in steps} == {50_000_000}


def test_a_device_that_dies_is_left_out_and_comes_back(tmp_path: Path) -> None:
    leave = Scenario((SimulatedFault(device="b", round=0, after_s=0.5, away_s=1.0).event(),))
    played = play(tmp_path, THREE, {"name": "dtfl", "tier": 2}, training(rounds=3), scenario=leave)
    (out,) = played.of(DeviceOut)
    assert (out.device, out.round, out.how) == ("b", 0, "lost")
    assert [record.again for record in played.of(DeviceJoined) if record.device == "b"] == [False, True]
    assert [finished.merged for finished in played.of(RoundFinished)] == [("a", "c"), ("a", "b", "c"), ("a", "b", "c")]


def test_a_deadline_ends_a_round_in_virtual_time(tmp_path: Path) -> None:
    wanted = training(rounds=2, deadline_s=5.0)
    played = play(tmp_path, THREE, {"name": "dtfl", "tier": 1}, wanted, profiles={"b": NARROW})
    assert [finished.why for finished in played.of(RoundFinished)] == ["deadline", "deadline"]
    assert all(finished.seconds == pytest.approx(5.0, abs=0.1) for finished in played.of(RoundFinished))
    assert {(out.device, out.how) for out in played.of(DeviceOut)} == {("b", "late")}
