"""Fleets of both backends where most users are: cgroups of version 2, systemd, netem. What is judged is right or wrong;
no speed is, for such a machine may be an emulated one."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from edgebed.errors import FleetError, LimitError
from orchestrator import session
from orchestrator.fleet import containers, links, local
from orchestrator.fleet.base import Held
from orchestrator.fleet.cgroups import Cgroup
from orchestrator.fleet.containers import DockerFleet
from orchestrator.fleet.engine import connect
from orchestrator.fleet.image import ensure_image
from orchestrator.fleet.links import HelperShaper
from orchestrator.fleet.profile import Limits
from orchestrator.fleet.throttle import confirm, mismatches
from orchestrator.records.types import LimitsSet, Record
from orchestrator.standing import Standing
from tests.guest._devices import (
    connect_s,
    cpu_share,
    fleet_file,
    in_network,
    pid_of,
    quota_in_force,
    reload_systemd,
    start_alone,
    traces,
)

pytestmark = [pytest.mark.guest, pytest.mark.docker, pytest.mark.mosquitto, pytest.mark.asyncio(loop_scope="module")]

PATIENCE_S = 1200.0
"""For agents to load torch: minutes in an emulated machine."""
ODD = 0.0205
"""A quota that systemd would round to 0.03."""


class Stand:
    """A standing fleet with the records of what happened to it."""

    def __init__(self, standing: Standing) -> None:
        self.standing, self.fleet = standing, standing.fleet
        self.records: list[Record] = []
        standing.attach(self.records.append, None)

    def pid(self, device: str) -> int:
        return pid_of(self.fleet.backend, self.standing.fleet_id, device, self.standing.names.index(device))

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
        async with session.standing_fleet(spec, backend=request.param, dilation="off") as standing:
            yield Stand(standing)
        assert traces(standing.fleet_id) == []


def assert_holds(limits: Limits, held: Held, pid: int) -> None:
    assert mismatches(limits, held) == []
    assert held.read_back
    assert quota_in_force(pid) == pytest.approx(limits.cpus, rel=0.01)


async def test_limits_are_in_force_and_read_back(stand: Stand) -> None:
    for name, limits in stand.standing.limits.items():
        held = await stand.fleet.held(name)
        assert held.alive
        assert_holds(limits, held, stand.pid(name))


async def test_latency_holds_in_both_directions_and_can_be_taken_away(stand: Stand) -> None:
    held = await stand.fleet.held("far")
    assert (held.uplink_latency_ms, held.downlink_latency_ms) == pytest.approx((30, 30), rel=0.01)
    with socket.create_server((stand.fleet.host_of("far"), 0)) as server:
        where = (stand.pid("far"), *server.getsockname())
        assert await asyncio.to_thread(connect_s, *where) >= 0.060
        near = Limits(0.1234, 20_000_000, 10_000_000, 1024)
        assert_holds(near, await stand.fleet.limit("far", near), where[0])
        assert await asyncio.to_thread(connect_s, *where) < 0.060


async def test_limits_change_in_place(stand: Stand) -> None:
    pid = stand.pid("near")
    for limits in (Limits(0.5, 5_000_000, 6_000_000, 900, 10.0), Limits(0.0412, 7_000_000, 8_000_000, 1200)):
        assert_holds(limits, await stand.fleet.limit("near", limits), pid)
    assert stand.pid("near") == pid


async def test_a_fine_quota_binds_and_outlives_a_reload_of_systemd(stand: Stand) -> None:
    limits, pid = Limits(ODD, 20_000_000, 10_000_000, 1024), stand.pid("far")
    assert_holds(limits, await stand.fleet.limit("far", limits), pid)
    assert ODD / 2 < await asyncio.to_thread(cpu_share, pid, 10.0) < ODD * 1.25  # 0.03 is 1.46 times as much
    await asyncio.to_thread(reload_systemd)
    for name, wanted in (("far", limits), ("near", Limits(0.0412, 7_000_000, 8_000_000, 1200))):
        assert_holds(wanted, await stand.fleet.held(name), stand.pid(name))
    await stand.standing.put_on_limits("far", "end of test")
    await stand.standing.put_on_limits("near", "end of test")


async def test_a_cut_link_is_cut_and_comes_back_limited(stand: Stand) -> None:
    pid = stand.pid("near")
    in_network(pid, "ip", "link", "set", "eth0", "down")
    with pytest.raises(FleetError, match="answers no ping"):
        await stand.standing.roster.measure_clock("near", rounds=1)
    in_network(pid, "ip", "link", "set", "eth0", "up")
    await stand.standing.roster.measure_clock("near", rounds=60)
    assert_holds(stand.standing.limits["near"], await stand.fleet.held("near"), pid)


async def test_a_killed_agent_comes_back_limited(stand: Stand) -> None:
    killed = stand.pid("near")
    os.kill(killed, signal.SIGKILL)
    record = await stand.limited_again("near")
    assert record.held_cpus == pytest.approx(0.3, rel=0.01)
    assert stand.pid("near") != killed
    assert_holds(stand.standing.limits["near"], await stand.fleet.held("near"), stand.pid("near"))


async def test_without_a_cgroup_of_ours_a_rounded_quota_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a user who may use the engine and is not root: systemd's word is then the last one."""

    def refuse(cgroup: Cgroup) -> Cgroup:
        raise LimitError("not root")

    monkeypatch.setattr(Cgroup, "take_in", refuse)
    spec = fleet_file(tmp_path, d0=(ODD, 0))
    fleet = DockerFleet(spec, "fguest0001")
    rounds = fleet._client.info()["CgroupDriver"] == "systemd"
    try:
        await start_alone(fleet, tmp_path, "d0")
        monkeypatch.setattr(containers, "confirm", lambda limits, held: held)
        await fleet.limit("d0", spec.devices[0].profile.limits)  # an older runc writes the file, past systemd
        await asyncio.to_thread(reload_systemd)
        held = await fleet.held("d0")
        assert held.cpus == pytest.approx(0.03 if rounds else ODD, rel=0.01)
        if rounds:
            with pytest.raises(LimitError, match="CPU quota is") as refused:
                confirm(spec.devices[0].profile.limits, held)
            assert "cgroupfs" in refused.value.cure
    finally:
        await fleet.close()
    assert traces("fguest0001") == []


async def test_the_helper_shapes_both_directions_and_reads_the_quota_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for an engine in a virtual machine: no process of a container is visible from here."""
    monkeypatch.setattr(links, "is_ours", lambda container: False)
    image = await asyncio.to_thread(lambda: ensure_image(connect(), print))
    spec = fleet_file(tmp_path, d0=(0.13, 20))
    fleet = DockerFleet(spec, "fguest0002", shaper=HelperShaper(connect(), image, {}))
    try:
        await start_alone(fleet, tmp_path, "d0")
        held = await fleet.limit("d0", spec.devices[0].profile.limits)
        assert held.details["read from"] == "docker inspect and the helper"
        assert_holds(spec.devices[0].profile.limits, held, pid_of("docker", "fguest0002", "d0", 0))
    finally:
        await fleet.close()
    assert traces("fguest0002") == []
