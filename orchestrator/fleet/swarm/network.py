"""Whether the network between the hosts carries what the devices of a Swarm may send and receive.

All nodes send at once to the orchestrator's host, then it sends to all at once: each at the sum of its devices' rates
÷ D, over TLS as in a run. So the result is that of network, node helpers and this process together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from edgebed.errors import CapacityError
from orchestrator.fleet.spec.profile import FleetSpec
from orchestrator.fleet.swarm.placement import Node, Placement

CARRIED = 0.9
"""Share of the wanted rate that counts as all: a device's rate counts headers too, and a connection begins slowly."""

Rates = tuple[float, float]
"""Bits per second up and down."""


class Link(Protocol):
    node: Node

    async def carried(self, bit_s: float, up: bool) -> float:
        """Bits per second that arrive of so many that are sent, from the node (`up`) or to it."""
        ...


class Flow(msgspec.Struct, frozen=True):
    """Of one node while all are busy: the sum of its devices' rates, and what arrived."""

    node: str
    wanted: Rates
    carried: Rates

    @property
    def factor(self) -> float:
        """By which the rates must be divided; 1 if they are carried."""
        pairs = zip(self.wanted, self.carried, strict=True)
        return max(1.0, *(1.0 if got >= CARRIED * wanted else wanted / max(got, 1.0) for wanted, got in pairs))

    def __str__(self) -> str:
        pairs = zip(self.carried, self.wanted, strict=True)
        up, down = (f"{carried / 1e6:.3g} of {wanted / 1e6:.3g} Mbit/s" for carried, wanted in pairs)
        return f"{self.node} {up} up and {down} down"


def rates_on(placement: Placement, fleets: Sequence[FleetSpec]) -> dict[str, Rates]:
    """By node id, the sums of its devices' rates before dilation, up and down; the largest of any of `fleets`."""

    def on(node: str, fleet: FleetSpec) -> Rates:
        there = [each.profile.limits for each in fleet.devices if placement.node_of.get(each.name) == node]
        return sum(limits.uplink_bit_s for limits in there), sum(limits.downlink_bit_s for limits in there)

    sums = {node.id: [on(node.id, fleet) for fleet in fleets] for node in placement.nodes}
    return {id: (max(up for up, _ in rates), max(down for _, down in rates)) for id, rates in sums.items()}


async def dilation_with_network(
    links: Mapping[str, Link],
    rates: Mapping[str, Rates],
    dilation: float,
    may_grow: bool,
    notify: Callable[[str], None],
) -> float:
    """The dilation with which the network carries the rates of all nodes at once; `dilation` if it does so already.

    Args:
        links, rates: by node id; rates before dilation.
        may_grow: a larger dilation may be chosen.
        notify: gets a line if it is.

    Raises:
        CapacityError: it does not carry them and may not grow, with the figures of every node.
        FleetError: a node does not answer.
    """
    flows = await _measure(links, {id: (up / dilation, down / dilation) for id, (up, down) in rates.items()})
    factor = max(flow.factor for flow in flows)
    if factor > 1 and not may_grow:
        raise CapacityError(
            f"the network between the hosts does not carry the rates of all devices at once at D = {dilation:.3g}: "
            f"{in_words(flows)}",
            hint=f"use dilation: auto (here {dilation * factor:.3g}; boards without limits forbid it), fewer or slower "
            "links, or a faster network",
        )
    if factor > 1:
        notify(
            f"the network between the hosts sets D to {dilation * factor:.3g}, not {dilation:.3g}: {in_words(flows)}"
        )
    return dilation * factor


async def _measure(links: Mapping[str, Link], rates: Mapping[str, Rates]) -> list[Flow]:
    ups = await asyncio.gather(*(_carried(link, rates[id][0], True) for id, link in links.items()))
    downs = await asyncio.gather(*(_carried(link, rates[id][1], False) for id, link in links.items()))
    return [
        Flow(link.node.name, rates[id], (up, down))
        for (id, link), up, down in zip(links.items(), ups, downs, strict=True)
    ]


async def _carried(link: Link, bit_s: float, up: bool) -> float:
    """0 for a node without devices."""
    return await link.carried(bit_s, up) if bit_s else 0.0


def in_words(flows: Sequence[Flow]) -> str:
    """What every node, and all together, carried."""
    wanted, carried = _sum([flow.wanted for flow in flows]), _sum([flow.carried for flow in flows])
    return "; ".join(map(str, [*flows, Flow("all together:", wanted, carried)]))


def _sum(rates: Sequence[Rates]) -> Rates:
    return sum(up for up, _ in rates), sum(down for _, down in rates)
