"""Rounds that a deadline cuts while uploads of a device wait at its slow server half, for every method that has one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from edgebed.methods.base import METHODS
from orchestrator.records.types import DeviceOut, Fault, RoundFinished, UploadReceived
from tests.component._cut import DEVICES, SLOW, CountingLink, Cut, fleet_on, with_server_half
from tests.component._fleet import Fleet, training

ROUNDS = 3
WANTED = training(rounds=ROUNDS, batch_size=4, deadline_s=1.2, quorum=2, liveness_s=60.0)
STEP_S = 0.4
KINDS = [pytest.param("mosquitto", marks=pytest.mark.mosquitto), "embedded"]


async def cut_and_come_back(made: Fleet, links: Mapping[str, CountingLink], name: str) -> None:
    """The server half of one device is slow in all rounds but the last, in which everybody is merged."""
    made.records.clear()
    for link in links.values():
        link.sent.clear()
    cut = Cut({"name": name}, range(ROUNDS - 1), STEP_S)
    try:
        await made.play(cut.method, WANTED, slots=3)
    finally:
        cut.free.set()
    assert {(r.device, r.how) for r in made.of(DeviceOut)} == {(SLOW, "late")}, name
    rounds = made.of(RoundFinished)
    assert [r.why for r in rounds[:-1]] == ["deadline"] * (ROUNDS - 1), name
    assert rounds[-1].merged == tuple(DEVICES), name
    assert {r.round for r in made.of(UploadReceived) if r.device == SLOW} == set(range(ROUNDS)), name
    assert max(times for link in links.values() for times in link.sent.values()) <= 3, name
    assert not made.of(Fault), name


@pytest.mark.alone
@pytest.mark.parametrize("kind", KINDS)
async def test_a_device_whose_round_was_cut_comes_back_in_the_next(tmp_path: Path, kind: str) -> None:
    methods = [name for name in METHODS.names() if with_server_half({"name": name})]
    assert {"dtfl", "splitfed", "sfl", "s2fl", "fedgkt"} <= set(methods)
    async with fleet_on(kind, tmp_path) as (made, links):
        for name in methods if kind == "mosquitto" else ["dtfl"]:
            await cut_and_come_back(made, links, name)
