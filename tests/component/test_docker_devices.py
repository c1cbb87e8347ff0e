"""Devices in containers: whom they reach, what they may do, and how they come back. All tests share one fleet."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from orchestrator.fleet.control.controller import FleetController
from orchestrator.fleet.docker import devices as container_devices
from orchestrator.fleet.docker.image import ensure_image
from orchestrator.fleet.engine import connect
from orchestrator.fleet.network import links
from orchestrator.runs.session import standing_fleet
from tests.component._docker import container_of
from tests.component._faults import process_status, small_fleet

pytestmark = [pytest.mark.docker, pytest.mark.mosquitto, pytest.mark.asyncio(loop_scope="module")]


NET_ADMIN = 1 << 12
"""The bit of this capability."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def controller(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[FleetController]:
    spec = small_fleet(tmp_path_factory.mktemp("fleet"), 0.3, 0.2)
    async with standing_fleet(spec, backend="docker", dilation="off") as controller:
        yield controller


REACH = """
import socket, sys
for place in sys.argv[1:]:
    host, port = place.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=2).close()
        print("open")
    except ConnectionRefusedError:
        print("refused")
    except OSError:
        print("unreachable")
"""


def reached_from(container: Any, *places: str) -> list[str]:
    """`open`, `refused` (somebody is there) or `unreachable`, for each host:port."""
    return str(container.exec_run(["python", "-c", REACH, *places]).output.decode()).split()


async def test_a_device_reaches_the_host_over_its_shaped_link_and_nobody_else(controller: FleetController) -> None:
    device = await asyncio.to_thread(container_of, controller, "d0")
    other = await asyncio.to_thread(container_of, controller, "d1")
    (theirs,) = [network["IPAddress"] for network in other.attrs["NetworkSettings"]["Networks"].values()]
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        ours = f"{controller.backend.host_of('d0')}:{port}"
        assert await asyncio.to_thread(reached_from, device, ours, f"{theirs}:9") == ["open", "unreachable"]
    with pytest.raises(ConnectionRefusedError):  # that address answers where it can be reached
        socket.create_connection((theirs, 9), timeout=5)

    show = ["ip", "-j", "-d"]
    routes = [json.loads(device.exec_run([*show, "route", "get", to]).output) for to in (theirs, "198.51.100.1")]
    assert all(route["dev"] == "eth0" for found in routes for route in found)
    links = {link["ifname"] for link in json.loads(device.exec_run([*show, "link"]).output)}
    assert {name for name in links if not name.startswith(("ifb", "sit", "tunl"))} == {"lo", "eth0"}
    assert json.loads(device.exec_run(["ip", "-j", "-6", "addr", "show", "dev", "eth0"]).output) in ([], [{}])
    # The engine's resolver sits in the device itself and would ask on behalf of it: it is given nobody to ask.
    assert device.attrs["HostConfig"]["Dns"] == [container_devices.NOWHERE]


async def test_the_agent_in_a_container_has_no_privilege(controller: FleetController) -> None:
    container = await asyncio.to_thread(container_of, controller, "d0")
    fields = process_status(int(container.attrs["State"]["Pid"]))
    assert fields["Uid"].split() == ["10001"] * 4
    assert [int(fields[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")] == [0] * 5
    assert fields["NoNewPrivs"] == "1"
    assert container.attrs["HostConfig"]["PidsLimit"] == container_devices.MOST_PROCESSES
    for command in (
        ["touch", "/app/x"],
        ["touch", "/shard.safetensors"],
        ["ip", "link", "set", "eth0", "mtu", "900"],
    ):
        assert container.exec_run(command).exit_code != 0
        assert container.exec_run(command, user="root").exit_code != 0


async def test_a_killed_container_is_reported_and_comes_back_limited(controller: FleetController) -> None:
    backend = controller.backend
    told: asyncio.Queue[str] = asyncio.Queue()
    backend.on_exit(lambda device, why: told.put_nowait(f"{device}: {why}"))
    first = await asyncio.to_thread(container_of, controller, "d0")
    password = controller.broker.access("host", "d0").password
    assert password not in json.dumps(first.attrs)  # what `docker inspect` shows
    assert password.encode() in (await asyncio.to_thread(first.exec_run, ["cat", "/broker"])).output
    await asyncio.to_thread(first.kill)
    async with asyncio.timeout(60):
        assert "d0: its container ended with exit code 137" in await told.get()
        await backend.restart("d0")
    fresh = await backend.held("d0")
    assert fresh.alive
    assert fresh.cpus is None  # it starts without limits
    held = await backend.limit("d0", controller.limits["d0"])  # another veth pair than before
    assert (held.cpus, held.uplink_bit_s) == (pytest.approx(0.3), 20_000_000)


async def test_the_helper_that_shapes_a_device_may_do_nothing_else() -> None:
    """It runs as root, in the network of a container whose agent may have been taken over."""
    client = connect()
    image = await asyncio.to_thread(ensure_image, client, print)
    device = await asyncio.to_thread(lambda: client.containers.run(image, ["60"], entrypoint=["sleep"], detach=True))
    helper = links.HelperShaper(client, image, {})
    script = "grep -E 'CapEff|CapBnd|NoNewPrivs' /proc/self/status; touch /x 2>&1; "
    script += "cat /sys/fs/cgroup/pids.max /sys/fs/cgroup/pids/pids.max 2>/dev/null; true"
    try:
        said = await asyncio.to_thread(helper._run, device, script)  # noqa: SLF001
    finally:
        await asyncio.to_thread(device.remove, force=True)
    assert dict(line.split(":\t") for line in said.splitlines() if ":\t" in line) == {
        "CapEff": f"{NET_ADMIN:016x}",
        "CapBnd": f"{NET_ADMIN:016x}",
        "NoNewPrivs": "1",
    }
    assert "64" in said.splitlines()
    assert "Read-only file system" in said
