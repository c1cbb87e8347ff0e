"""A fleet of twelve over three engines of a Docker Swarm and a board beside them: placement, limits, rounds, and an
engine that is killed.

EDGEBED_SWARM_UP names the program that joins engines to a Swarm: `PROGRAM 2` prints a line `SOCKET ADDRESS NODE_ID` for
each of two new ones, whose folder holds the process id of the engine in `pid`; `PROGRAM --down` removes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import docker
import msgspec
import psutil
import pytest
import pytest_asyncio

from edgebed.errors import CapacityError, FleetError
from edgebed.limits.spec import Limits
from orchestrator.boards.members import with_facts
from orchestrator.fleet.control.controller import FleetController
from orchestrator.fleet.engine import DEVICE, FLEET
from orchestrator.fleet.spec import profile
from orchestrator.fleet.spec.profile import DeviceSpec, FleetSpec, load_fleet
from orchestrator.fleet.swarm.push import push_image
from orchestrator.records.host_records import HostRound
from orchestrator.records.types import DeviceJoined, DeviceOut, LimitsSet, RoundFinished, ScenarioStep, TaskSent
from orchestrator.runs import session
from orchestrator.runs.data import prepare_data
from orchestrator.scenario.spec import ScenarioEvent
from tests.artificial_board import ArtificialBoard, artificial_board
from tests.component._faults import causes, short_calibration
from tests.e2e.rig import FleetUp, experiment
from tests.hangs import COMMAND_S

pytestmark = [
    pytest.mark.alone,
    pytest.mark.swarm,
    pytest.mark.docker,
    pytest.mark.root,
    pytest.mark.mosquitto,
    pytest.mark.asyncio(loop_scope="module"),
]

DEVICES = 12
BOARD = Limits(0.2, 20_000_000, 20_000_000, 1024)
"""What a board is like that has no limits."""
PROFILE = "cpus: 0.05\nuplink_mbit_s: 20\ndownlink_mbit_s: 20\nmemory_mib: 1024\n"
FLEET_FILE = """
name: three-engines
backend: swarm
reserve_cpus: 0.2
swarm:
  nodes:
    - {{node: {own}, cores: 0.6}}
    - {{node: {first[1]}, cores: 0.5, socket: {first[0]}}}
    - {{node: {second[1]}, cores: 0.5, socket: {second[0]}}}
devices:
  - {{profile: small.yaml, name: dev, count: 12}}
"""
Worker = tuple[str, str, str]
"""Socket, address and node id of an engine."""


@pytest.fixture(scope="module")
def workers() -> Iterator[list[Worker]]:
    """Two engines beside this host's own, all with the agent's image; removed at the end."""
    program = os.environ["EDGEBED_SWARM_UP"]
    try:
        said = subprocess.run([program, "2"], check=True, capture_output=True, text=True, timeout=300).stdout
        found = [(socket, address, id) for socket, address, id in map(str.split, said.splitlines())]
        push_image("", [], print)  # builds it, once
        with ThreadPoolExecutor() as both:
            list(both.map(lambda worker: push_image("", [f"unix://{worker[0]}"], print), found))
        yield found
    finally:
        subprocess.run([program, "--down"], check=True, capture_output=True, timeout=COMMAND_S)


@pytest.fixture(scope="module")
def spec(workers: list[Worker], tmp_path_factory: pytest.TempPathFactory) -> FleetSpec:
    folder = tmp_path_factory.mktemp("swarm")
    with contextlib.closing(docker.from_env()) as client:
        own = client.info()["Swarm"]["NodeID"]
    (folder / "small.yaml").write_text(PROFILE)
    (folder / "fleet.yaml").write_text(FLEET_FILE.format(own=own, first=workers[0], second=workers[1]))
    return load_fleet(folder / "fleet.yaml")


@pytest.fixture(scope="module")
def board(spec: FleetSpec) -> Iterator[ArtificialBoard]:
    """It has joined a boards service of its own, and is connected."""
    folder = spec.path.parent
    with pytest.MonkeyPatch.context() as patch, artificial_board(folder, "pi", BOARD) as board:
        patch.setenv("XDG_STATE_HOME", str(folder))
        yield board


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(spec: FleetSpec, board: ArtificialBoard) -> AsyncIterator[FleetUp]:
    folder = spec.path.parent
    (folder / "shards").mkdir()
    wanted, all_ = experiment(), (*spec.devices, DeviceSpec("pi", profile.BOARD, "pi"))
    spec = msgspec.structs.replace(spec, devices=all_)
    prepared = prepare_data(wanted, [device.name for device in spec.devices], folder / "shards")
    async with session.standing_fleet(with_facts(spec), shards=prepared.shards, heartbeat_s=0.5) as controller:
        yield FleetUp(controller, prepared, "swarm")


def devices_on(socket: str, controller: FleetController) -> set[str]:
    """Devices whose containers run on an engine."""
    with contextlib.closing(docker.DockerClient(f"unix://{socket}")) as client:
        chosen = {"label": [f"{FLEET}={controller.fleet_id}", DEVICE]}
        return {container.labels[DEVICE] for container in client.containers.list(filters=chosen)}


def processes_of(socket: str) -> list[psutil.Process]:
    """The first process of every container of an engine, and its parent, which outlives the engine too."""
    with contextlib.closing(docker.DockerClient(f"unix://{socket}")) as client:
        running = [client.api.inspect_container(container.id) for container in client.containers.list()]
    first = [psutil.Process(container["State"]["Pid"]) for container in running]
    return first + [parent for process in first if (parent := process.parent()) is not None]


def freeze(socket: str, controller: FleetController, device: str) -> None:
    """Stop the processes of a device's container."""
    with contextlib.closing(docker.DockerClient(f"unix://{socket}")) as client:
        chosen = {"label": [f"{FLEET}={controller.fleet_id}", f"{DEVICE}={device}"]}
        (container,) = client.containers.list(filters=chosen)
        first = psutil.Process(client.api.inspect_container(container.id)["State"]["Pid"])
    for process in (first, *first.children(recursive=True)):
        process.suspend()


async def test_a_node_without_the_image_is_named(spec: FleetSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """The base image is on this host's engine only."""
    assert spec.swarm is not None
    others = msgspec.structs.replace(spec, swarm=msgspec.structs.replace(spec.swarm, nodes=spec.swarm.nodes[1:]))
    monkeypatch.setattr("orchestrator.fleet.swarm.backend.ensure_image", lambda *_: "python:3.11-slim-bookworm")
    with pytest.raises(FleetError, match="did not start: No such image") as refused:
        async with session.standing_fleet(others):
            pass
    assert "push-image" in refused.value.hint


async def test_cores_that_the_nodes_do_not_have_together_are_found(spec: FleetSpec) -> None:
    """Each of the three engines reports all cores of this machine."""
    assert spec.swarm is not None
    all_cores = [msgspec.structs.replace(node, cores=None) for node in spec.swarm.nodes]
    greedy = msgspec.structs.replace(spec, swarm=msgspec.structs.replace(spec.swarm, nodes=all_cores))
    with pytest.raises(CapacityError, match="do not give the CPUs that they state when all are busy at once"):
        async with session.standing_fleet(greedy):
            pass


@contextlib.contextmanager
def slow_link(address: str) -> Iterator[None]:
    """What this host sends to an address comes at 30 Mbit/s."""
    command = ["ip", "route", "get", address]
    found = subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMMAND_S).stdout
    link = found.split(" dev ")[1].split()[0]
    slow = ["dev", link, "root", "tbf", "rate", "30mbit", "burst", "128kb", "latency", "50ms"]
    subprocess.run(["tc", "qdisc", "add", *slow], check=True, timeout=COMMAND_S)
    try:
        yield
    finally:
        subprocess.run(["tc", "qdisc", "del", "dev", link, "root"], check=True, timeout=COMMAND_S)


async def test_a_slow_network_to_a_node_is_found(spec: FleetSpec, workers: list[Worker]) -> None:
    """Its devices may receive 80 or 100 Mbit/s."""
    address = workers[0][1]
    with slow_link(address), pytest.raises(CapacityError, match="network between the hosts does not") as refused:
        async with session.standing_fleet(spec, dilation="off"):
            pass
    (told,) = re.findall(rf"{re.escape(address)} [^;]*", str(refused.value))
    up, wanted, down, _ = map(float, re.findall(r"[\d.]+(?= of)|(?<=of )[\d.]+", told))
    assert up >= 0.9 * wanted
    assert 15 < down < 40


async def test_the_limits_of_twelve_devices_on_three_nodes_hold(fleet: FleetUp, workers: list[Worker]) -> None:
    controller = fleet.controller
    on_workers = [await asyncio.to_thread(devices_on, worker[0], controller) for worker in workers]
    assert sorted(len(devices) for devices in on_workers) == [4, 5]  # they have 0.4 CPU for devices, the first 0.3
    for name in set(controller.names) - {"pi"}:
        held = await controller.backend.held(name)
        assert held.cpus == 0.05
        assert (held.uplink_bit_s, held.downlink_bit_s, held.memory_mib) == (20_000_000, 20_000_000, 1024)
        assert held.details["read from"] == "the node's kernel"
    result = await short_calibration(controller)
    assert result.passed, causes(result)
    its = [row for row in result.rows if row.device == "pi"]
    assert [row.quantity for row in its] == ["cpu busy", "uplink", "downlink"]
    assert not any(row.judged for row in its)
    assert (await controller.backend.held("pi")).alive


async def test_no_password_stands_in_a_service(fleet: FleetUp) -> None:
    controller = fleet.controller
    with contextlib.closing(docker.from_env()) as client:
        services = client.services.list(filters={"label": f"{FLEET}={controller.fleet_id}"})
        told = str([service.attrs for service in services])
    assert len(services) == DEVICES + 3  # and the helpers
    for name in controller.names:
        assert controller.broker.access("here", name).password not in told


async def test_what_a_scenario_asks_is_in_force_on_a_node_and_is_undone(
    fleet: FleetUp, workers: list[Worker], tmp_path: Path
) -> None:
    (tmp_path / "ramp.csv").write_text("time_s,uplink_mbit_s,downlink_mbit_s\n0,5,15\n1,10,15\n")
    (tmp_path / "experiment.yaml").write_text("")
    controller = fleet.controller
    first, second, third, fourth, *_ = sorted(await asyncio.to_thread(devices_on, workers[0][0], controller))
    events = [
        {"at_s": 0, "device": first, "limits": {"cpus": 0.04, "downlink_mbit_s": 8}, "for_s": 2},
        {"at_s": 0, "device": second, "trace": {"file": "ramp.csv", "offset_s": 0, "at_end": "stop"}},
        {"at_s": 0, "device": third, "do": "cut", "for_s": 1},
        {"at_s": 0, "device": fourth, "do": "leave"},
        {"at_s": 2, "device": third, "do": "freeze", "for_s": 1},
        {"at_s": 2, "device": fourth, "do": "return"},
        {"at_s": 3, "device": first, "compete_cpus": 0.02, "for_s": 1},
    ]
    wanted = msgspec.structs.replace(
        experiment(rounds=1000, max_batches=8, liveness_s=20.0), scenario=msgspec.convert(events, list[ScenarioEvent])
    )
    async with fleet.run(wanted, tmp_path) as run:
        await run.expect(DeviceJoined, lambda record: record.device == fourth and record.again)
        for device, kind in ((first, "limits"), (first, "compete"), (third, "cut"), (third, "freeze")):
            await run.expect(ScenarioStep, lambda r, d=device, k=kind: (r.device, r.kind, r.begins) == (d, k, False))
        told = {(step.device, step.kind, step.begins): step for step in run.of(ScenarioStep)}
        rates = [step.held_uplink_bit_s for step in run.of(ScenarioStep) if step.device == second]
        limited = [r for r in run.of(LimitsSet) if r.device == first and r.why == "scenario"]
    assert [step.error for step in told.values() if step.error] == []
    assert (limited[0].held_cpus, limited[0].held_downlink_bit_s) == (0.04, 8_000_000)
    assert rates == [5_000_000, 10_000_000, 20_000_000]
    assert [told[third, "cut", begins].held for begins in (True, False)] == ["link down", "link up"]
    assert [told[third, "freeze", begins].held for begins in (True, False)] == ["container paused", "container running"]
    assert told[first, "compete", True].held == "busy processes in its container: 1"
    for name in set(controller.names) - {"pi"}:
        held = await controller.backend.held(name)
        assert (held.cpus, held.uplink_bit_s, held.downlink_bit_s) == (0.05, 20_000_000, 20_000_000)


async def test_devices_of_a_killed_engine_are_lost_and_come_back_elsewhere(
    fleet: FleetUp, workers: list[Worker], tmp_path: Path
) -> None:
    """The node's containers outlive its engine. Its helper ends, and so do their connections."""
    controller, (socket, *_) = fleet.controller, workers[1]
    its = await asyncio.to_thread(devices_on, socket, controller)
    left = await asyncio.to_thread(processes_of, socket)
    try:
        async with fleet.run(experiment(rounds=1000, max_batches=8, liveness_s=20.0), tmp_path) as run:
            sent = await run.expect(TaskSent, lambda record: record.round == 2 and record.device in its)
            await asyncio.to_thread(freeze, socket, controller, sent.device)  # it is at work when its connection ends
            os.kill(int((Path(socket).parent / "pid").read_text()), signal.SIGKILL)
            first = await run.expect(DeviceOut, lambda record: record.device == sent.device)
            again = await run.expect(LimitsSet, lambda record: record.device in its and record.at_ns > first.at_ns)
            await run.expect(
                RoundFinished, lambda record: record.round > first.round and set(record.merged) == set(controller.names)
            )
            rounds, hosts = run.of(RoundFinished), run.of(HostRound)
    finally:
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    assert again.why == "rejoin"
    assert set(rounds[0].merged) == set(controller.names)
    assert (first.how, "no progress" in first.why) == ("lost", False)
    assert sent.device not in rounds[first.round].merged
    assert set(controller.names) - set(rounds[first.round].merged) <= its
    heard = [node for host in hosts[:2] for node in host.nodes]
    assert len({node.name for node in heard}) == 3
    assert workers[1][1] not in {node.name for node in hosts[-1].nodes}
    for node in heard:  # engines of this machine
        assert node.here
        assert 0 < node.busy_s <= 1.1 * node.cores * node.wall_s
    for device in its:  # on a node that lives
        assert (await controller.backend.held(device)).details["node"] != workers[1][1]
