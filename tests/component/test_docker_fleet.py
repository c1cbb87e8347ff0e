"""The docker backend on a real engine: limits held by both ways of shaping, no privilege, nothing left over."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from docker.models.containers import Container, ContainerCollection
from docker.models.networks import NetworkCollection

from edgebed.datasets.shard import write_idle_shard
from edgebed.errors import LimitError
from edgebed.limits.shell import run
from edgebed.limits.throttle import unshape_command
from edgebed.link.connection import Address
from orchestrator.fleet import engine, leftovers, ownership
from orchestrator.fleet.docker import devices as container_devices
from orchestrator.fleet.docker.backend import DockerBackend
from orchestrator.fleet.docker.image import content, context, ensure_image, tag_of
from orchestrator.fleet.engine import DEVICE, FLEET
from orchestrator.fleet.local.backend import SoftwareBackend
from orchestrator.fleet.network import links
from orchestrator.fleet.spec.profile import Limits
from orchestrator.runs.session import standing_fleet
from tests.component._docker import container_of
from tests.component._faults import (
    assert_each_fault_is_named,
    assert_short_work_is_not_too_fast,
    calibrate_by_command,
    causes,
    short_calibration,
    small_fleet,
    waits_for_threads,
    watch_end,
)

pytestmark = [pytest.mark.docker, pytest.mark.mosquitto]


def traces(fleet_id: str) -> list[str]:
    """What of a fleet is still on the engine."""
    client = engine.connect()
    chosen = {"label": f"{FLEET}={fleet_id}"}
    found = client.containers.list(all=True, filters=chosen) + client.networks.list(filters=chosen)
    return [thing.name for thing in found]


@pytest.mark.alone
async def test_a_device_is_held_unprivileged_and_leaves_nothing(tmp_path: Path) -> None:
    async with standing_fleet(small_fleet(tmp_path, 0.3), backend="docker", dilation="off") as controller:
        good = await short_calibration(controller)
        assert good.passed, causes(good)
        assert_short_work_is_not_too_fast(good)

        container = await asyncio.to_thread(container_of, controller, "d0")
        host = container.attrs["HostConfig"]
        assert not host["Privileged"]
        assert host["CapDrop"] == ["ALL"]
        assert host["CapAdd"] is None
        assert host["ReadonlyRootfs"]
        assert "no-new-privileges" in host["SecurityOpt"]
        assert (host["CpuQuota"], host["CpuPeriod"]) == (30000, 100000)
        who = container.exec_run(["id", "-u"]).output
        assert who.strip() != b"0"
        routes = json.loads(container.exec_run(["ip", "-j", "route"]).output)
        assert {route["dev"] for route in routes} == {"eth0"}
        (network,) = container.attrs["NetworkSettings"]["Networks"]
        assert engine.connect().networks.get(network).attrs["Internal"]
        assert container.exec_run(["tc", "qdisc", "del", "dev", "eth0", "root"]).exit_code != 0
        assert "password" not in json.dumps(container.attrs["Args"])

        held = await controller.backend.limit("d0", Limits(0.5, 5_000_000, 6_000_000, 900))  # in place
        assert (held.cpus, held.uplink_bit_s, held.downlink_bit_s, held.memory_mib) == (0.5, 5_000_000, 6_000_000, 900)
        fleet_id = controller.fleet_id
    assert await asyncio.to_thread(traces, fleet_id) == []


@pytest.mark.alone
def test_the_command_names_each_fault_with_its_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = small_fleet(tmp_path, 0.3, 0.2, 0.1).path
    shape, update = links.HostShaper.shape, Container.update

    def shape_wrongly(shaper: links.HostShaper, container: Any, limits: Limits) -> None:
        shape(shaper, container, limits)
        device, pid = container.labels[DEVICE], int(container.attrs["State"]["Pid"])
        if device == "d0":
            fast = Limits(limits.cpus, limits.uplink_bit_s * 8, limits.downlink_bit_s * 8, limits.memory_mib)
            shape(shaper, container, fast)
        if device == "d2":
            run(unshape_command(links.host_end(pid)))

    def update_without_quota(container: Any, **limits: Any) -> Any:
        if container.labels[DEVICE] == "d1":
            limits = {name: value for name, value in limits.items() if not name.startswith("cpu")}
        return update(container, **limits)

    monkeypatch.setattr(links.HostShaper, "shape", shape_wrongly)
    monkeypatch.setattr(Container, "update", update_without_quota)
    monkeypatch.setattr(container_devices, "confirm", lambda limits, held: held)  # the read-back looks away
    code, faults = calibrate_by_command(path, "docker")
    assert code == 1
    assert_each_fault_is_named(faults)


@pytest.mark.parametrize(("collection", "step"), [(NetworkCollection, "create"), (ContainerCollection, "run")])
async def test_a_start_that_is_interrupted_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, collection: type[Any], step: str
) -> None:
    began, go = threading.Event(), threading.Event()
    real = getattr(collection, step)

    def slowly(*args: Any, **settings: Any) -> Any:
        began.set()
        assert go.wait(30)
        return real(*args, **settings)

    monkeypatch.setattr(collection, step, slowly)
    fleet_id = f"finterrupt{step[0]}"
    backend = DockerBackend(small_fleet(tmp_path, 0.3, 0.2), fleet_id)
    start = asyncio.create_task(_prepare_and_start(backend, tmp_path))
    assert await asyncio.to_thread(began.wait, 60)
    start.cancel()
    await asyncio.wait([start])
    ending = watch_end(monkeypatch)
    close = asyncio.create_task(backend.close())
    assert await waits_for_threads(close, ending)
    go.set()
    await close
    await asyncio.get_running_loop().shutdown_default_executor()
    assert traces(fleet_id) == []


async def _prepare_and_start(backend: DockerBackend, folder: Path) -> None:
    await backend.prepare()
    shard = folder / "shard.safetensors"
    write_idle_shard(shard)
    access = {name: Address(backend.host_of(name), 1, "u", "p") for name in ("d0", "d1")}
    await backend.start(access, dict.fromkeys(access, shard))


@pytest.mark.alone
async def test_the_helper_shapes_as_well_as_the_host_and_faults_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[links.HelperShaper] = []

    def helper(client: Any, image: str, labels: dict[str, str]) -> links.Shaper:
        made.append(links.HelperShaper(client, image, labels))
        return made[-1]

    monkeypatch.setattr(links, "choose", helper)
    async with standing_fleet(small_fleet(tmp_path, 0.3), backend="docker", dilation="off") as controller:
        held = await controller.backend.held("d0")
        assert held.details["shaped from"] == "helper"
        good = await short_calibration(controller)
        assert good.passed, causes(good)

        def eight_times(container: Any, limits: Limits) -> None:
            fast = Limits(limits.cpus, limits.uplink_bit_s * 8, limits.downlink_bit_s * 8, limits.memory_mib)
            links.HelperShaper.shape(made[0], container, fast)

        monkeypatch.setattr(made[0], "shape", eight_times)
        with pytest.raises(LimitError, match=r"uplink is 1\.6e"):
            await controller.put_on_limits("d0", "fault")


OWNER = """
import asyncio, sys
from pathlib import Path
from orchestrator.fleet.docker.backend import DockerBackend
from orchestrator.fleet.spec.profile import load_fleet

async def main():
    backend = DockerBackend(load_fleet(Path(sys.argv[1])), sys.argv[2])
    await backend.prepare()
    print("made", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_what_a_killed_owner_left_goes_at_the_next_start_and_no_living_ones(tmp_path: Path) -> None:
    spec = small_fleet(tmp_path, 0.3)
    living = DockerBackend(spec, "fliving02")
    await living.prepare()
    try:
        await asyncio.to_thread(_start_and_kill, spec.path, "fdead0002")
        assert await asyncio.to_thread(traces, "fdead0002") != []
        found = await asyncio.to_thread(leftovers.collect)
        assert {left.kind for left in found if "fdead0002" in left.name} == {"network"}
        assert await asyncio.to_thread(traces, "fdead0002") == []
        assert await asyncio.to_thread(traces, "fliving02") != []
    finally:
        await living.close()
    assert await asyncio.to_thread(traces, "fliving02") == []


def _start_and_kill(path: Path, fleet_id: str) -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER, str(path), fleet_id], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"made\n"
        owner.kill()


RUN = """
import asyncio, sys
from pathlib import Path
from orchestrator.fleet.spec.profile import load_fleet
from orchestrator.runs.session import standing_fleet

async def main():
    spec = load_fleet(Path(sys.argv[1]))
    async with standing_fleet(spec, backend="docker", dilation="off", heartbeat_s=0.5) as standing:
        print(standing.fleet_id, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_agents_of_a_killed_orchestrator_end_and_any_backend_removes_all_it_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEBED_ALONE_S", "1")
    path = small_fleet(tmp_path, 0.3).path
    owner = await asyncio.create_subprocess_exec(sys.executable, "-c", RUN, str(path), stdout=subprocess.PIPE)
    assert owner.stdout is not None
    fleet_id = (await owner.stdout.readline()).decode().strip()
    client = engine.connect()
    (container,) = client.containers.list(filters={"label": f"{FLEET}={fleet_id}"})
    owner.kill()
    await owner.wait()
    ended = await asyncio.to_thread(container.wait, timeout=120)
    assert ended["StatusCode"] == 4
    assert b"nothing was received from an orchestrator" in container.logs()
    folders = await asyncio.to_thread(lambda: list(ownership.abandoned()))
    assert any(path.name.startswith(f"edgebed-{fleet_id}-") for path in folders)
    software = SoftwareBackend(small_fleet(tmp_path, 0.3), "fsoftware1", kernel=False)
    try:
        await software.prepare()
    finally:
        await software.close()
    assert await asyncio.to_thread(traces, fleet_id) == []
    assert not [path for path in folders if path.exists()]


def test_the_same_content_is_the_same_image_and_is_built_once() -> None:
    files = content()
    assert context(files) == context(dict(reversed(files.items())))
    assert tag_of(files) != tag_of({**files, "edge_agent/more.py": b""})
    assert not any("orchestrator" in name for name in files)
    client, said = engine.connect(), list[str]()
    ensure_image(client, said.append)
    said.clear()
    assert ensure_image(client, said.append) == tag_of(files)
    assert said == []
