"""What the Swarm's manager is asked for, and what it tells of tasks. A stand-in for the engine."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from edgebed.errors import FleetError
from orchestrator.boards.authority import Authority
from orchestrator.fleet.swarm.helpers import MOST_MEMORY, start_helpers, write_credentials
from orchestrator.fleet.swarm.manager import Manager, Task
from orchestrator.fleet.swarm.placement import Node

TASK = {
    "ServiceID": "s1",
    "CreatedAt": "2026-11-22T12:00:00.5Z",
    "Status": {
        "State": "running",
        "Timestamp": "2026-11-22T12:00:01.123456789Z",
        "ContainerStatus": {"ContainerID": "c1"},
    },
}


@pytest.fixture
def asked() -> dict[str, Any]:
    return {}


@pytest.fixture
def manager(asked: dict[str, Any]) -> Manager:
    def create_service(task: dict[str, Any], name: str, **more: Any) -> dict[str, str]:
        asked.update(more, task=task, name=name)
        return {"ID": "s1"}

    swarm = {"ControlAvailable": True, "NodeID": "n1", "NodeAddr": "10.0.0.1"}
    api = SimpleNamespace(create_service=create_service, tasks=lambda filters: [TASK])
    return Manager(SimpleNamespace(info=lambda: {"Swarm": swarm}, api=api), {"owner": "me"})


def start(manager: Manager) -> str:
    container = {"image": "sha256:1", "cap_drop": ["ALL"], "read_only": True}
    return manager.run("dev-1", "n2", container, network="net", labels={"device": "dev-1"}, most_processes=64)


def test_a_service_asks_for_no_rights(manager: Manager, asked: dict[str, Any]) -> None:
    """This is what is asked for. Docker 20.10 ignores the first of it."""
    assert start(manager) == "s1"
    spec = asked["task"]["ContainerSpec"]
    assert spec["Privileges"] == {"NoNewPrivileges": True}
    assert spec["CapabilityDrop"] == ["ALL"]
    assert spec["ReadOnly"] is True


def test_a_service_has_one_container_on_its_node_and_no_quota(manager: Manager, asked: dict[str, Any]) -> None:
    """The engine refuses period and quota beside a limit of CPUs."""
    start(manager)
    task = asked["task"]
    assert task["Placement"] == {"Constraints": ["node.id==n2"]}
    assert task["RestartPolicy"]["Condition"] == "none"
    assert task["Resources"]["Limits"] == {"Pids": 64}
    assert asked["mode"] == {"replicated": {"Replicas": 1}}


def test_a_node_that_still_fetches_the_image_is_told_from_one_that_is_away(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TASK, "Status", {"State": "preparing", "Timestamp": "2026-11-22T12:00:01Z"})
    with pytest.raises(FleetError, match=r"^far did not start within -1 s: it is preparing$") as late:
        manager.wait_running({"far": "s1"}, -1.0)
    assert "docker pull" in late.value.hint
    with pytest.raises(FleetError, match="it is not yet given to a node"):
        manager.wait_running({"far": "s2"}, -1.0)


def test_a_task_tells_when_its_node_said_that_it_runs(manager: Manager) -> None:
    """In seconds since 1970, of nine decimals."""
    (task,) = manager.tasks(["s1"]).values()
    assert (task.state, task.container) == ("running", "c1")
    assert task.at_s == pytest.approx(1795348801.123456, abs=1e-5)


async def test_a_helper_has_a_limit_of_memory(manager: Manager, asked: dict[str, Any], tmp_path: Path) -> None:
    """It has the engine's socket, and strangers reach its ports."""
    manager.run("helper", "n1", {"image": "i"}, network="host", labels={}, most_processes=64, most_memory=MOST_MEMORY)
    assert asked["task"]["Resources"]["Limits"] == {"Pids": 64, "MemoryBytes": 1 << 30}
    made: list[dict[str, Any]] = []

    def run(*_: object, **options: Any) -> str:
        made.append(options)
        raise FleetError("no engine")

    stand_in = SimpleNamespace(make_secret=lambda *_: {}, run=run)
    nodes, ca = [Node("n1", "n1", "127.0.0.1", 1.0, 0.1)], Authority(tmp_path)
    with pytest.raises(FleetError):
        await start_helpers(
            cast(Manager, stand_in), nodes, "image", "f1", ca, write_credentials(tmp_path, ca), port=20_000
        )
    assert made[0]["most_memory"] == MOST_MEMORY


async def test_a_helper_that_started_at_a_wrong_time_tells_its_nodes_clock(tmp_path: Path) -> None:
    """Before a connection to it is tried, which TLS would refuse."""
    behind_s = {"n1": 0.0, "n2": 3 * 3600.0}
    stand_in = SimpleNamespace(
        make_secret=lambda *_: {},
        run=lambda name, node, *_, **__: node,
        wait_running=lambda *_: {},
        tasks=lambda services: {id: Task(id, "running", "c", "", time.time() - behind_s[id]) for id in services},
    )
    nodes, ca = [Node(id, id, "127.0.0.1", 1.0, 0.1) for id in behind_s], Authority(tmp_path)
    with pytest.raises(FleetError, match=r"minutes: n2 is 3 hours behind this host$"):
        await start_helpers(
            cast(Manager, stand_in), nodes, "image", "f1", ca, write_credentials(tmp_path, ca), port=20_000
        )
