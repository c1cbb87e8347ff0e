"""Limits of both backends under cgroups of version 2, systemd and netem. A process that sleeps stands in the agent's
place: a kernel holds its limits just the same, and torch, which takes minutes to load in an emulated machine, is out of
the way."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from docker.models.containers import ContainerCollection

from edgebed.errors import LimitError
from edgebed.limits.cgroups import Cgroup
from edgebed.limits.throttle import confirm
from orchestrator.fleet.base import Backend
from orchestrator.fleet.docker import devices as container_devices
from orchestrator.fleet.docker.backend import DockerBackend
from orchestrator.fleet.docker.image import ensure_image
from orchestrator.fleet.engine import DEVICE, connect
from orchestrator.fleet.local.backend import LocalBackend
from orchestrator.fleet.network import links
from orchestrator.fleet.spec.profile import Limits
from tests.guest._devices import (
    asleep_in,
    assert_holds,
    connect_s,
    cpu_share,
    fleet_file,
    in_network,
    pid_of,
    reload_systemd,
    start_docker,
    traces,
)

pytestmark = [pytest.mark.guest, pytest.mark.docker, pytest.mark.asyncio(loop_scope="module")]

FLEET_ID = "fguest0001"
ODD = Limits(0.0205, 20_000_000, 10_000_000, 300)
"""A quota that systemd would round to 0.03."""
FAR = Limits(0.1234, 20_000_000, 10_000_000, 300, latency_ms=30)


@pytest.fixture(scope="module", autouse=True)
def asleep() -> Any:
    """Containers of this module do nothing."""
    run = ContainerCollection.run

    def asleep(self: ContainerCollection, image: str, **settings: Any) -> Any:
        if DEVICE in settings["labels"]:
            settings |= {"entrypoint": ["sleep"], "command": ["100000"]}
        return run(self, image, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ContainerCollection, "run", asleep)
        yield


class Stand:
    """A fleet of one device, d0."""

    def __init__(self, backend: Backend, sleeper: int | None) -> None:
        self.backend, self._sleeper = backend, sleeper

    @property
    def pid(self) -> int:
        return self._sleeper or pid_of("docker", FLEET_ID, "d0", 0)

    async def put_on(self, limits: Limits) -> None:
        assert_holds(limits, await self.backend.limit("d0", limits), self.pid)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["local", "docker"])
async def stand(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stand]:
    folder = tmp_path_factory.mktemp(request.param)
    spec = fleet_file(folder, d0=(0.3, 0))
    backend: Backend
    try:
        if request.param == "local":
            backend = local = LocalBackend(spec, FLEET_ID, kernel=True)
            await local.prepare()
            with asleep_in(FLEET_ID) as pid:
                yield Stand(local, pid)
                await local.close()  # ends the sleeper, too
        else:
            backend = docker = DockerBackend(spec, FLEET_ID)
            await start_docker(docker, folder, "d0")
            yield Stand(docker, None)
    finally:
        await backend.close()
    assert traces(FLEET_ID) == []


async def test_latency_holds_in_both_directions_and_can_be_taken_away(stand: Stand) -> None:
    await stand.put_on(FAR)
    with socket.create_server((stand.backend.host_of("d0"), 0)) as server:
        where = (stand.pid, *server.getsockname())
        assert await asyncio.to_thread(connect_s, *where) >= 0.060
        await stand.put_on(Limits(0.1234, 20_000_000, 10_000_000, 300))
        assert await asyncio.to_thread(connect_s, *where) < 0.060


async def test_limits_change_in_place(stand: Stand) -> None:
    for limits in (Limits(0.5, 5_000_000, 6_000_000, 200, 10.0), Limits(0.0412, 7_000_000, 8_000_000, 400)):
        await stand.put_on(limits)


async def test_a_fine_quota_binds_and_outlives_a_reload_of_systemd(stand: Stand) -> None:
    await stand.put_on(ODD)
    share = await asyncio.to_thread(cpu_share, stand.pid, 10.0)
    assert ODD.cpus / 2 < share < ODD.cpus * 1.25  # 0.03 is 1.46 times as much
    await asyncio.to_thread(reload_systemd)
    assert_holds(ODD, await stand.backend.held("d0"), stand.pid)


async def test_a_link_that_was_cut_comes_back_limited(stand: Stand) -> None:
    await stand.put_on(ODD)
    with socket.create_server((stand.backend.host_of("d0"), 0)) as server:
        where = (stand.pid, *server.getsockname())
        in_network(stand.pid, "ip", "link", "set", "eth0", "down")
        with pytest.raises(subprocess.CalledProcessError):
            await asyncio.to_thread(connect_s, *where)
        in_network(stand.pid, "ip", "link", "set", "eth0", "up")
        assert await asyncio.to_thread(connect_s, *where) < 1.0
    assert_holds(ODD, await stand.backend.held("d0"), stand.pid)


async def test_a_container_that_was_killed_is_reported_and_limited_anew(tmp_path: Path) -> None:
    backend = DockerBackend(fleet_file(tmp_path, d0=(0.3, 0)), "fguest0002")
    told: asyncio.Queue[str] = asyncio.Queue()
    try:
        await start_docker(backend, tmp_path, "d0")
        backend.on_exit(lambda device, why: told.put_nowait(why))
        os.kill(pid_of("docker", "fguest0002", "d0", 0), signal.SIGKILL)
        async with asyncio.timeout(120):
            assert "exit code 137" in await told.get()
        await backend.restart("d0")
        assert_holds(ODD, await backend.limit("d0", ODD), pid_of("docker", "fguest0002", "d0", 0))
    finally:
        await backend.close()
    assert traces("fguest0002") == []


async def test_without_a_cgroup_of_ours_a_rounded_quota_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a user who may use the engine and is not root: systemd's word is then the last one."""

    def refuse(cgroup: Cgroup) -> Cgroup:
        raise LimitError("not root")

    monkeypatch.setattr(Cgroup, "take_in", refuse)
    monkeypatch.setattr(container_devices, "confirm", lambda limits, held: held)
    rounds = connect().info()["CgroupDriver"] == "systemd"
    backend = DockerBackend(fleet_file(tmp_path, d0=(0.3, 0)), "fguest0003")
    try:
        await start_docker(backend, tmp_path, "d0")
        await backend.limit("d0", ODD)  # an older runc writes the kernel's file itself; systemd knows a rounded quota
        await asyncio.to_thread(reload_systemd)
        held = await backend.held("d0")
        assert held.cpus == pytest.approx(0.03 if rounds else 0.0205)
        if rounds:
            with pytest.raises(LimitError, match="CPU quota is") as refused:
                confirm(ODD, held)
            assert "cgroupfs" in refused.value.hint
    finally:
        await backend.close()
    assert traces("fguest0003") == []


async def test_the_helper_shapes_both_directions_and_reads_the_quota_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for an engine in a virtual machine: no process of a container is visible from here."""
    monkeypatch.setattr(links, "is_ours", lambda container: False)
    image = await asyncio.to_thread(lambda: ensure_image(connect(), print))
    shaper = links.HelperShaper(connect(), image, {})
    backend = DockerBackend(fleet_file(tmp_path, d0=(0.3, 0)), "fguest0004", shaper=shaper)
    try:
        await start_docker(backend, tmp_path, "d0")
        wanted = Limits(0.13, 20_000_000, 10_000_000, 300, latency_ms=20)
        held = await backend.limit("d0", wanted)
        assert held.details["read from"] == "docker inspect and the helper"
        assert_holds(wanted, held, pid_of("docker", "fguest0004", "d0", 0))
    finally:
        await backend.close()
    assert traces("fguest0004") == []
