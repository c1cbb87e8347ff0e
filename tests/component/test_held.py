"""Devices that keep a reference's time: the orchestrator names one that does not, whatever it says itself."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from edgebed.device.pieces import BATCH, FIRST
from edgebed.pacing import Pacer
from edgebed.wire.messages import Assignment, Cost
from orchestrator.fleet.spec.profile import Speed
from orchestrator.records.types import DeviceDone, Fault, UpdateReceived
from tests.component._fleet import fleet, training

BATCH_S = 0.05
"""CPU seconds of a batch on the reference: many times what it takes here."""

SPEED = Speed("x86-sse41")
DEVICES = {"honest": 120, "other": 120}


def costs(device: str, assignment: Assignment) -> dict[str, Cost]:
    pieces = dict.fromkeys(BATCH, BATCH_S / 2) | {"batch": BATCH_S}
    small = dict.fromkeys(("receive", "send", "decode", "build", "reply", "encode", "update", "finish"), 0.002)
    every = pieces | small | {f"{FIRST}{kind}": cpu_s for kind, cpu_s in pieces.items()}
    return {kind: Cost(((0.0, cpu_s), (1e6, cpu_s))) for kind, cpu_s in every.items()}


class Skipping(Pacer):
    """Leaves every third hold out."""

    def __init__(self) -> None:
        super().__init__()
        self._holds = 0

    def hold(self, wait: Callable[[float], None], *, waited: bool = False) -> float:
        self._holds += 1
        if self._holds % 3:
            return super().hold(wait, waited=waited)
        self.begin()
        return 0.0


class Denying(Pacer):
    """Says that it is never late, and is."""

    def hold(self, wait: Callable[[float], None], *, waited: bool = False) -> float:
        super().hold(wait, waited=waited)
        wait(0.1)
        self.begin()
        return 0.0


def second(kind: type[Pacer], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two agents, the second one has a pacer of this kind."""
    made = itertools.count()
    monkeypatch.setattr("edge_agent.agent.Pacer", lambda: kind() if next(made) else Pacer())


@pytest.mark.parametrize("spec", [{"name": "fedavg"}, {"name": "dtfl", "tier": 3}, {"name": "splitfed"}])
async def test_devices_that_hold_are_neither_late_nor_early(spec: dict[str, object], tmp_path: Path) -> None:
    async with fleet(tmp_path, DEVICES, speed=SPEED) as made:
        await made.play(spec, training(rounds=2), costs=costs)
    done = made.of(DeviceDone)
    assert len(done) == 4
    for each in done:
        assert each.seconds > 15 * BATCH_S
        assert each.early_s == pytest.approx(0.0, abs=0.005)
        assert each.late_s is not None  # how much depends on how busy this host is
    assert made.of(Fault) == []


@pytest.mark.parametrize("spec", [{"name": "fedavg"}, {"name": "dtfl", "tier": 3}, {"name": "splitfed"}])
async def test_a_device_that_skips_every_third_hold_is_named(
    spec: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second(Skipping, monkeypatch)
    async with fleet(tmp_path, DEVICES, speed=SPEED) as made:
        await made.play(spec, training(rounds=2), costs=costs)
    early = {(each.round, each.device): each.early_s or 0.0 for each in made.of(DeviceDone)}
    for number in range(2):
        assert early[number, "other"] > BATCH_S
        assert early[number, "honest"] < 0.005
    faults = made.of(Fault)
    assert [fault.device for fault in faults] == ["other", "other"]
    assert all("does not hold" in fault.what for fault in faults)


async def test_a_device_that_denies_that_it_is_late_is_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    second(Denying, monkeypatch)
    async with fleet(tmp_path, DEVICES, speed=SPEED) as made:
        await made.play({"name": "fedavg"}, training(rounds=1), costs=costs)
    late = {each.device: each.late_s for each in made.of(DeviceDone)}
    said = {each.device: each.report.late_s for each in made.of(UpdateReceived)}
    assert said["other"] == 0.0
    assert late["other"] is not None
    assert late["other"] > 1.5  # 0.1 s after each of its holds
