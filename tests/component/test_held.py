"""Devices that keep a reference's time: the orchestrator names one that does not, whatever it says itself."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from edgebed.device.pieces import BATCH, FIRST
from edgebed.pacing import Pacer
from edgebed.wire.messages import Assignment, Cost
from orchestrator.fleet.spec.profile import ProfileSpec
from orchestrator.fleet.spec.speed import AFTERWARDS, Need, Speed
from orchestrator.records.types import DeviceDone, Fault, UpdateReceived
from orchestrator.scenario.agenda import Condition
from tests.component._fleet import WIDE, fleet, training

BATCH_S = 0.15
"""CPU seconds of a batch on the reference: many times what it takes here."""

SPEED = Speed("x86-sse41")
DEVICES = {"honest": 64, "other": 64}


def costs(device: str, assignment: Assignment) -> dict[str, Cost]:
    pieces = dict.fromkeys(BATCH, BATCH_S / 2) | {"batch": BATCH_S}
    small = dict.fromkeys(("receive", "send", "decode", "build", "reply", "encode", "update", "finish"), 0.002)
    every = pieces | small | {f"{FIRST}{kind}": cpu_s for kind, cpu_s in pieces.items()}
    return {kind: Cost(((0.0, cpu_s), (1e6, cpu_s))) for kind, cpu_s in every.items()}


class Skipping(Pacer):
    """Leaves every third hold out, of those after half a batch or more."""

    def __init__(self) -> None:
        super().__init__()
        self._holds, self._charged_s = 0, 0.0

    def charge(self, cpu_s: float) -> None:
        super().charge(cpu_s)
        self._charged_s += cpu_s

    def hold(self, wait: Callable[[float], None], *, waited: bool = False, used_s: float | None = None) -> float:
        charged_s, self._charged_s = self._charged_s, 0.0
        self._holds += charged_s >= BATCH_S / 2
        if charged_s < BATCH_S / 2 or self._holds % 3:
            return super().hold(wait, waited=waited, used_s=used_s)
        self.begin()
        return 0.0


class Denying(Pacer):
    """Says that it is never late, and is."""

    def hold(self, wait: Callable[[float], None], *, waited: bool = False, used_s: float | None = None) -> float:
        super().hold(wait, waited=waited, used_s=used_s)
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
        assert each.seconds > 8 * BATCH_S
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
    early = {name: [each.early_s or 0.0 for each in made.of(DeviceDone) if each.device == name] for name in DEVICES}
    assert max(early["honest"]) < 0.005
    assert max(early["other"]) > BATCH_S / 2  # a busy host makes up for some of it
    faults = made.of(Fault)
    assert {fault.device for fault in faults} == {"other"}
    assert all("does not hold" in fault.what for fault in faults)


async def test_a_device_that_denies_that_it_is_late_is_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    second(Denying, monkeypatch)
    async with fleet(tmp_path, DEVICES, speed=SPEED) as made:
        await made.play({"name": "fedavg"}, training(rounds=1), costs=costs)
    late = {each.device: each.late_s for each in made.of(DeviceDone)}
    said = {each.device: each.report.late_s for each in made.of(UpdateReceived)}
    assert said["other"] == 0.0
    assert late["other"] is not None
    assert late["other"] > 0.8  # 0.1 s after each of its holds


async def test_agents_are_told_whose_time_they_keep_and_what_they_have_of_their_cpus(tmp_path: Path) -> None:
    speed = Speed("x86-sse41", 0.5, index=2.0, needs={"a": Need(0.5, 0.8)})
    half = ProfileSpec("half", msgspec.structs.replace(WIDE.limits, cpus=0.5))
    async with fleet(tmp_path, {"a": 8}, speed=speed, profiles={"a": WIDE}) as made:
        controller = made.controller

        def told() -> tuple[bool, bool, float, float, float]:
            found = controller.membership.devices["a"].configure
            assert found is not None
            return found.paced, found.by_reference, found.cpus, found.ceiling, found.share

        def rate() -> float:
            now = time.monotonic()
            return controller.earned["a"].given(now + 1.0) - controller.earned["a"].given(now)

        assert told() == (True, True, 1.0, pytest.approx(AFTERWARDS * 0.8), 1.0)
        assert rate() == pytest.approx(1.0)
        await controller.change("a", half)
        assert told() == (True, True, 0.5, pytest.approx(AFTERWARDS * 0.4), 1.0)
        assert rate() == pytest.approx(0.5)
        await controller.put("a", Condition(rival_cpus=0.2))
        assert told()[-1] == pytest.approx(0.6)
        assert rate() == pytest.approx(0.3)
        await controller.put("a", Condition(running=False))
        assert (told()[-1], rate()) == (0.0, 0.0)
        await controller.put("a", Condition())
        assert rate() == pytest.approx(0.5)
    async with fleet(tmp_path, {"a": 8}) as made:
        found = made.controller.membership.devices["a"].configure
        assert found is not None
        assert (found.paced, found.by_reference, found.share) == (False, False, 1.0)
