"""The network between the hosts of a Swarm: what it must carry, and the dilation that follows."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgebed.errors import CapacityError
from edgebed.limits.spec import Limits
from orchestrator.fleet.spec.profile import DeviceSpec, FleetSpec, ProfileSpec
from orchestrator.fleet.swarm.network import dilation_with_network, rates_on
from orchestrator.fleet.swarm.placement import Node, place

NODES = [Node("1", "n1", "10.0.0.1", 1.0, 0.0), Node("2", "n2", "10.0.0.2", 1.0, 0.0)]


class Wire:
    """A node behind a network that carries so many bits per second up and down."""

    def __init__(self, node: Node, up: float, down: float) -> None:
        self.node, self._most = node, (down, up)

    async def carried(self, bit_s: float, up: bool) -> float:
        assert bit_s > 0
        return min(bit_s, self._most[up])


def fleet(*rates: tuple[int, int]) -> FleetSpec:
    devices = [DeviceSpec(f"d{i}", ProfileSpec("p", Limits(0.5, up, down, 512))) for i, (up, down) in enumerate(rates)]
    return FleetSpec("f", "swarm", 0.0, tuple(devices), Path("f.yaml"))


def test_a_node_must_carry_the_most_that_its_devices_ever_have() -> None:
    spec = fleet((10, 20), (30, 40), (50, 60))
    placement = place(spec, NODES)
    assert (placement.on("1"), placement.on("2")) == (["d0", "d2"], ["d1"])
    assert rates_on(placement, [spec]) == {"1": (60, 80), "2": (30, 40)}
    assert rates_on(placement, [spec, fleet((10, 90), (5, 5), (20, 60))]) == {"1": (60, 150), "2": (30, 40)}


async def found(up: float, down: float, dilation: float = 1.0, may_grow: bool = True) -> tuple[float, list[str]]:
    """The dilation of two nodes that want 100 Mbit/s up and 50 down, one of them behind such a network, and what is
    said."""
    links = {"1": Wire(NODES[0], 1e9, 1e9), "2": Wire(NODES[1], up, down)}
    said: list[str] = []
    rates = dict.fromkeys(links, (1e8, 5e7))
    return await dilation_with_network(links, rates, dilation, may_grow, said.append), said


@pytest.mark.parametrize(
    ("up", "down", "dilation", "factor"),
    [
        (2e8, 2e8, 1.0, 1.0),
        (0.95e8, 2e8, 1.0, 1.0),
        (4e7, 2e8, 1.0, 2.5),
        (4e7, 1e7, 1.0, 5.0),
        (4e7, 2e8, 2.0, 2.5),
        (4e7, 2e8, 3.0, 3.0),
    ],
    ids=["enough", "headers", "up", "down", "not enough divided", "enough divided"],
)
async def test_the_dilation_grows_to_what_the_slowest_node_carries(
    up: float, down: float, dilation: float, factor: float
) -> None:
    got, said = await found(up, down, dilation)
    assert got == pytest.approx(factor)
    assert bool(said) == (factor > dilation)


async def test_a_dilation_that_is_given_is_refused_with_the_figures_of_every_node() -> None:
    with pytest.raises(CapacityError, match="does not carry the rates of all devices at once at D = 1: ") as refused:
        await found(4e7, 2e8, may_grow=False)
    said = str(refused.value)
    assert "n1 100 of 100 Mbit/s up and 50 of 50 Mbit/s down; n2 40 of 100 Mbit/s up and 50 of 50 Mbit/s down; " in said
    assert "all together: 140 of 200 Mbit/s up and 100 of 100 Mbit/s down" in said
    assert "dilation: auto (here 2.5; " in refused.value.hint


async def test_a_node_without_devices_needs_no_network() -> None:
    links = {"1": Wire(NODES[0], 1e9, 1e9), "2": Wire(NODES[1], 0.0, 0.0)}
    assert await dilation_with_network(links, {"1": (1e8, 1e8), "2": (0, 0)}, 1.0, False, print) == 1


async def test_a_network_that_carries_nothing_is_no_division_by_zero() -> None:
    with pytest.raises(CapacityError, match="0 of 100 Mbit/s up"):
        await found(0.0, 0.0, may_grow=False)
