"""Devices on the nodes of a Swarm: which node has which, the one dilation, refusals, and a node that is lost."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgebed.errors import CapacityError, FleetError, UsageError
from edgebed.limits.spec import Limits
from orchestrator.fleet.spec.profile import DeviceSpec, FleetSpec, ProfileSpec, load_fleet
from orchestrator.fleet.spec.swarm import NodeFile, SwarmFile
from orchestrator.fleet.swarm.placement import (
    Found,
    Node,
    Placement,
    arithmetic,
    choose_nodes,
    describe,
    dilation_of_nodes,
    place,
    place_again,
    quotas,
)

FOUND = [Found("aa1", "vm", "10.99.0.1", 4), Found("ab2", "vm", "10.99.1.2", 2), Found("cc3", "other", "10.99.2.2", 2)]


def fleet(*cpus: float, server_cpus: float | None = None) -> FleetSpec:
    devices = tuple(
        DeviceSpec(f"d{number}", ProfileSpec("p", Limits(each, 10**7, 10**7, 512))) for number, each in enumerate(cpus)
    )
    return FleetSpec("f", "swarm", 0.5, devices, Path("f.yaml"), server_cpus)


def board(cpus: float, unlimited: bool = False) -> DeviceSpec:
    return DeviceSpec("pi", ProfileSpec("p", Limits(cpus, 10**7, 10**7, 512, unlimited=unlimited)), "kitchen-pi")


def node(id: str, cores: float, reserved: float = 0.0) -> Node:
    return Node(id, id, f"10.0.0.{id}", cores, reserved)


def test_devices_go_where_the_load_is_least_in_proportion_to_the_room() -> None:
    """Rooms 2 and 1; 1.0, 0.5, 0.5, 0.25: 1.0 to the first (0.5 of it), 0.5 to the second (0.5), 0.5 to the first (0.75
    against 1), 0.25 to the second (0.75 against 0.875)."""
    placement = place(fleet(0.25, 1.0, 0.5, 0.5), [node("1", 2.5, 0.5), node("2", 1)])
    assert placement.on("1") == ["d1", "d3"]
    assert placement.on("2") == ["d2", "d0"]
    assert placement.needed({"d0": 0.25, "d1": 1.0, "d2": 0.5, "d3": 0.5}) == {"1": 0.75, "2": 0.75}


def test_one_dilation_is_the_largest_that_any_node_needs() -> None:
    spec = fleet(1, 1, 1)
    placement = place(spec, [node("1", 1), node("2", 1)])
    assert dilation_of_nodes(placement, [spec], "auto") == 2
    assert dilation_of_nodes(placement, [spec, fleet(3, 3, 1)], "auto") == 4  # the first and the last are on one node
    assert dilation_of_nodes(placement, [spec], 3) == 3


def test_a_fleet_that_fits_no_placement_is_refused_with_the_arithmetic() -> None:
    spec = fleet(1, 1, 1)
    placement = place(spec, [node("1", 1.5, 0.5), node("2", 1)])
    with pytest.raises(CapacityError) as refused:
        dilation_of_nodes(placement, [spec], "off")
    assert "3 devices want 3 CPUs, the nodes have 2" in str(refused.value)
    assert "1: 1.5 cores - 0.5 reserved = 1, 2 of them want 2: D 2" in str(refused.value)
    assert "auto (here 2)" in refused.value.hint
    with pytest.raises(CapacityError, match="the smallest CPU quota"):
        dilation_of_nodes(placement, [fleet(1, 1, 0.001)], "auto")
    with pytest.raises(UsageError, match="dilation"):
        dilation_of_nodes(placement, [spec], "much")


def test_a_server_with_cpus_of_its_own_takes_them_on_the_orchestrators_node() -> None:
    spec = fleet(0.5, 0.5, server_cpus=1.0)
    placement = place(spec, [node("1", 1), node("2", 1)], own="1")
    assert placement.on("1") == []
    assert placement.on("2") == ["d0", "d1"]
    assert dilation_of_nodes(placement, [spec], "off") == 1
    assert "2 devices want 2 CPUs" in arithmetic(placement, [spec])


def test_boards_are_on_no_node_and_without_limits_they_forbid_dilation() -> None:
    spec = fleet(1, 1, 0.5)
    limited = msgspec.structs.replace(spec, devices=(*spec.devices, board(0.01)))
    placement = place(limited, [node("1", 1), node("2", 1)])
    assert sorted(placement.node_of) == ["d0", "d1", "d2"]
    assert dilation_of_nodes(placement, [limited], "auto") == 1.5
    with pytest.raises(CapacityError, match=r"pi would get 0.0005 CPUs at D = 20"):
        dilation_of_nodes(placement, [limited], 20)
    free = msgspec.structs.replace(spec, devices=(*spec.devices, board(4.0, unlimited=True)))
    with pytest.raises(CapacityError) as refused:
        dilation_of_nodes(placement, [free], "auto")
    assert "without limits (pi), so its dilation must be 1" in str(refused.value)
    assert "3 devices want 2.5 CPUs, the nodes have 2: 1: 1 core - " in str(refused.value)
    with pytest.raises(CapacityError, match="The experiment asks for 3"):
        dilation_of_nodes(placement, [free], 3)
    roomy = place(free, [node("1", 2), node("2", 1)])
    assert dilation_of_nodes(roomy, [free], "auto") == 1


@given(
    st.lists(st.floats(1, 4), min_size=1, max_size=20),
    st.lists(st.floats(0.5, 16), min_size=1, max_size=6),
)
def test_every_device_has_one_node_and_auto_fits_all(cpus: list[float], cores: list[float]) -> None:
    spec, nodes = fleet(*cpus), [node(str(number), each) for number, each in enumerate(cores)]
    placement = place(spec, nodes)
    assert sorted(placement.node_of) == sorted(device.name for device in spec.devices)
    factor = dilation_of_nodes(placement, [spec], "auto")
    for each in nodes:
        assert sum(quotas(spec)[name] for name in placement.on(each.id)) / factor <= each.room * (1 + 1e-6)
    assert len(list(describe(placement, factor, quotas(spec)))) == len(nodes)


# ---- nodes ----


def test_nodes_are_found_by_address_host_and_id() -> None:
    file = SwarmFile(
        nodes=[NodeFile(node="10.99.0.1", cores=2), NodeFile(node="other", socket="/s"), NodeFile(node="ab")], cores=1.5
    )
    nodes = choose_nodes(FOUND, file, own="aa1", reserve_cpus=0.5)
    assert [(each.id, each.name, each.cores, each.reserved) for each in nodes] == [
        ("aa1", "10.99.0.1", 2, 0.6),  # two nodes are called vm
        ("cc3", "other", 1.5, 0.1),
        ("ab2", "10.99.1.2", 1.5, 0.1),
    ]
    assert nodes[1].socket == "/s"


def test_without_a_list_every_node_that_is_ready_holds_devices() -> None:
    found = [*FOUND, Found("d", "gone", "10.99.3.2", 8, "down")]
    assert [each.cores for each in choose_nodes(found, SwarmFile(), "", 0.5)] == [4, 2, 2]


@pytest.mark.parametrize(
    ("file", "error", "says"),
    [
        (SwarmFile(nodes=[NodeFile(node="vm")]), UsageError, "fits 2 nodes"),
        (SwarmFile(nodes=[NodeFile(node="nobody")]), UsageError, "fits no node"),
        (SwarmFile(nodes=[NodeFile(node="aa1"), NodeFile(node="10.99.0.1")]), UsageError, "the same node"),
        (SwarmFile(nodes=[NodeFile(node="other", cores=3)]), CapacityError, "has 2 cores, not 3"),
        (SwarmFile(nodes=[NodeFile(node="aa1", cores=0.6)]), CapacityError, "leave nothing"),
        (SwarmFile(nodes=[NodeFile(node="gone")]), FleetError, "is down"),
    ],
)
def test_a_list_of_nodes_that_cannot_be_used_is_refused(file: SwarmFile, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        choose_nodes([*FOUND, Found("d", "gone", "10.99.3.2", 8, "down")], file, "aa1", 0.5)


def test_a_swarm_without_a_ready_node_is_refused() -> None:
    with pytest.raises(FleetError, match="no node"):
        choose_nodes([Found("d", "gone", "10.99.3.2", 8, "down")], SwarmFile(), "", 0.5)


# ---- a lost node ----


def test_devices_of_a_lost_node_go_where_there_is_room() -> None:
    nodes = (node("1", 1), node("2", 1), node("3", 1))
    placement = Placement(nodes, {"a": "1", "b": "1", "c": "2", "d": "3"})
    cpus = {"a": 0.5, "b": 0.2, "c": 0.4, "d": 0.7}
    again, homeless = place_again(placement, cpus, ["a", "b"], {"1"})
    assert again.node_of == {"a": "2", "b": "3", "c": "2", "d": "3"}
    assert homeless == []


def test_a_device_for_which_no_node_has_room_is_named() -> None:
    placement = Placement((node("1", 1), node("2", 1)), {"a": "1", "b": "1", "c": "2"})
    again, homeless = place_again(placement, {"a": 0.5, "b": 0.3, "c": 0.6}, ["a", "b"], {"1"})
    assert homeless == ["a"]
    assert again.node_of == {"a": "1", "b": "2", "c": "2"}


# ---- the file ----


def test_a_fleet_file_names_nodes(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    text = "name: f\nbackend: swarm\nswarm: {cores: 0.5, nodes: [{node: vm, cores: 2}]}\ndevices: [{profile: cpu1}]\n"
    path.write_text(text)
    spec = load_fleet(path)
    assert spec.swarm == SwarmFile(cores=0.5, nodes=[NodeFile(node="vm", cores=2)])
    path.write_text(text.replace("cores: 2", "cores: none"))
    with pytest.raises(UsageError, match=r"fleet.yaml:3.*number of CPUs"):
        load_fleet(path)
