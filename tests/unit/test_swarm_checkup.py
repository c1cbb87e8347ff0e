"""What `edgebed doctor` says of a Swarm, and of a fleet on it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from edgebed.limits.spec import Limits
from orchestrator.fleet.host.checkup import fit
from orchestrator.fleet.spec.profile import DeviceSpec, FleetSpec, ProfileSpec
from orchestrator.fleet.swarm.checkup import Swarm, check_swarm, fit_swarm
from orchestrator.fleet.swarm.placement import Found

NODES = (
    Found("a", "one", "10.0.0.1", 4.0, version="20.10.24"),
    Found("b", "two", "10.0.0.2", 2.0, version="20.10.24"),
)
SWARM = Swarm(NODES, "a", image=True)
NONE = Swarm(error="this engine manages no Swarm (it is inactive)", hint="docker swarm init")


def changed(node: int, **values: str) -> Swarm:
    nodes = list(NODES)
    nodes[node] = msgspec.structs.replace(nodes[node], **values)
    return Swarm(tuple(nodes), "a", image=True)


def fleet(cpus: float) -> FleetSpec:
    device = DeviceSpec("d", ProfileSpec("p", Limits(cpus, 10**7, 10**7, 512)))
    other = DeviceSpec("e", ProfileSpec("p", Limits(cpus, 10**7, 10**7, 512)))
    return FleetSpec("f", "swarm", 0.5, (device, other), Path("f.yaml"))


def test_all_nodes_are_ready() -> None:
    rows = list(check_swarm(SWARM, needed=True))
    assert [row.lack for row in rows] == ["", "", "", ""]
    assert rows[0].found == "2 of 2 nodes ready: one 10.0.0.1 (4 cores), two 10.0.0.2 (2 cores)"
    assert rows[1].found == "Docker 20.10.24 on 2"


@pytest.mark.parametrize(
    ("swarm", "lack"),
    [
        (changed(1, down="down"), "two 10.0.0.2 is down"),
        (changed(1, version="29.1"), "the nodes have different versions of Docker"),
        (Swarm(NODES, "a"), "it is built when a fleet starts, and the nodes do not have it"),
    ],
)
def test_what_is_not_well_is_a_note(swarm: Swarm, lack: str) -> None:
    rows = list(check_swarm(swarm, needed=True))
    assert [row.lack for row in rows if row.lack] == [lack]
    assert all(row.hint for row in rows if row.lack)
    assert fit(rows)


def test_a_swarm_without_a_ready_node_holds_nothing() -> None:
    swarm = Swarm(tuple(msgspec.structs.replace(node, down="drain") for node in NODES), "a", image=True)
    assert not fit(list(check_swarm(swarm, needed=True)))
    assert fit(list(check_swarm(swarm, needed=False)))


def test_an_engine_without_a_swarm_lacks_it_only_where_it_is_wanted() -> None:
    (row,) = check_swarm(NONE, needed=True)
    assert (row.lack, row.hint, row.needed) == (NONE.error, NONE.hint, True)
    assert list(check_swarm(NONE, needed=False)) == []


def test_a_fleet_is_fitted_to_the_nodes() -> None:
    """Room is 4 - 0.5 - 0.1 and 2 - 0.1: 1.9 CPUs on the second need no dilation, 3.8 need 2."""
    assert fit_swarm(fleet(1.9), SWARM).dilation == 1
    assert fit_swarm(fleet(3.8), SWARM).dilation == pytest.approx(2)
    missing = fit_swarm(fleet(1.0), NONE)
    assert (missing.dilation, missing.lack, missing.hint, missing.fits) == (None, NONE.error, NONE.hint, False)
