"""Fleets with real agents where most users are: cgroups of version 2, systemd. What is judged is right or wrong; no
speed is, for such a machine may be an emulated one."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from edgebed.errors import FleetError
from orchestrator.fleet.control.controller import FleetController
from orchestrator.fleet.local import backend as local
from orchestrator.records.types import LimitsSet, Record
from orchestrator.runs import session
from tests.guest._devices import (
    assert_holds,
    fleet_file,
    in_network,
    pid_of,
    traces,
)

pytestmark = [pytest.mark.guest, pytest.mark.docker, pytest.mark.mosquitto, pytest.mark.asyncio(loop_scope="module")]

PATIENCE_S = 1200.0
"""For agents to load torch: minutes in an emulated machine."""


class Stand:
    """A standing fleet with the records of what happened to it."""

    def __init__(self, controller: FleetController) -> None:
        self.controller = controller
        self.records: list[Record] = []
        controller.attach(self.records.append)

    def pid(self, device: str) -> int:
        return pid_of(
            self.controller.backend.name, self.controller.fleet_id, device, self.controller.names.index(device)
        )

    async def limited_again(self, device: str) -> LimitsSet:
        """The record of its limits after it has come back."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for record in self.records:
                    if isinstance(record, LimitsSet) and record.device == device and record.why == "rejoin":
                        return record
                await asyncio.sleep(0.1)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["local", "docker"])
async def stand(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stand]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "JOIN_TIMEOUT_S", PATIENCE_S)
        patch.setattr(local, "START_TIMEOUT_S", PATIENCE_S)
        spec = fleet_file(tmp_path_factory.mktemp(request.param), near=(0.3, 0), far=(0.1234, 30))
        async with session.standing_fleet(spec, backend=request.param, dilation="off") as controller:
            yield Stand(controller)
        assert traces(controller.fleet_id) == []


async def test_limits_are_in_force_and_read_back(stand: Stand) -> None:
    for name, limits in stand.controller.limits.items():
        held = await stand.controller.backend.held(name)
        assert held.alive
        assert_holds(limits, held, stand.pid(name))


async def test_a_cut_link_is_cut_and_comes_back_limited(stand: Stand) -> None:
    pid = stand.pid("near")
    in_network(pid, "ip", "link", "set", "eth0", "down")
    with pytest.raises(FleetError, match="answers no ping"):
        await stand.controller.membership.measure_clock("near", rounds=1)
    in_network(pid, "ip", "link", "set", "eth0", "up")
    await stand.controller.membership.measure_clock("near", rounds=60)
    assert_holds(stand.controller.limits["near"], await stand.controller.backend.held("near"), pid)


async def test_a_killed_agent_comes_back_limited(stand: Stand) -> None:
    killed = stand.pid("near")
    os.kill(killed, signal.SIGKILL)
    record = await stand.limited_again("near")
    assert record.held_cpus == pytest.approx(0.3, rel=0.01)
    assert stand.pid("near") != killed
    assert_holds(stand.controller.limits["near"], await stand.controller.backend.held("near"), stand.pid("near"))
