"""Which node of a Swarm holds which device, and the one dilation that all nodes need. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from edgebed.errors import CapacityError, FleetError, UsageError, counted
from orchestrator.fleet.spec.capacity import check_boards, check_least, factor_of
from orchestrator.fleet.spec.profile import FleetSpec
from orchestrator.fleet.spec.swarm import SOCKET, NodeFile, SwarmFile

ROUNDING = 1e-9
SERVER = "the server"
"""Stands for the server's CPUs among the quotas; no device can have this name."""


class Found(msgspec.Struct, frozen=True):
    """A node as the Swarm's manager describes it. `down`: why it can hold nothing; "" if it can."""

    id: str
    host: str
    address: str
    cores: float
    down: str = ""
    version: str = ""  # of its engine

    def __str__(self) -> str:
        return f"{self.host} {self.address}"


class Node(msgspec.Struct, frozen=True):
    """A node that holds devices. `reserved` of its `cores` are for the helper and, on its node, the orchestrator."""

    id: str
    name: str
    address: str
    cores: float
    reserved: float
    socket: str = SOCKET

    @property
    def room(self) -> float:
        """CPUs for devices."""
        return self.cores - self.reserved

    def __str__(self) -> str:
        return f"{self.name}: {counted(self.cores, 'core')} - {self.reserved:g} reserved = {self.room:.3g}"


class Placement(msgspec.Struct, frozen=True):
    """Node id by device."""

    nodes: tuple[Node, ...]
    node_of: dict[str, str]

    def node(self, id: str) -> Node:
        return next(node for node in self.nodes if node.id == id)

    def on(self, id: str) -> list[str]:
        """The devices of a node, in the fleet's order."""
        return [name for name, node in self.node_of.items() if node == id and name != SERVER]

    def needed(self, cpus: Mapping[str, float]) -> dict[str, float]:
        """By node: the factor by which the quotas there must be divided, for quotas `cpus` by device."""
        load = {node.id: sum(cpus[name] for name, on in self.node_of.items() if on == node.id) for node in self.nodes}
        return {node.id: load[node.id] / node.room for node in self.nodes}


# ---- nodes -----------------------------------------------------------------------------------------------------------


def choose_nodes(found: Sequence[Found], file: SwarmFile, own: str, reserve_cpus: float) -> tuple[Node, ...]:
    """The nodes that hold devices.

    Args:
        own: id of the node on which the orchestrator runs; "" if it runs on none.
        reserve_cpus: kept there for the orchestrator.

    Raises:
        UsageError, CapacityError, FleetError: an entry fits no node or several, states too many cores, or leaves
            nothing; a node that is named is down; no node is left.
    """
    entries = [(entry, _named(entry.node, found)) for entry in file.nodes]
    entries = entries or [(NodeFile(node=node.id), node) for node in found if not node.down]
    twice = [node.id for _, node in entries]
    if len(set(twice)) < len(twice):
        raise UsageError("swarm: two entries of `nodes` are the same node", hint=_table(found))
    if not entries:
        raise FleetError("no node of the Swarm is ready", hint=_table(found))
    hosts = [node.host for _, node in entries]
    return tuple(
        _node(entry, node, file, node.host if hosts.count(node.host) == 1 else node.address, own, reserve_cpus)
        for entry, node in entries
    )


def _named(name: str, found: Sequence[Found]) -> Found:
    exact = [node for node in found if name in (node.host, node.address, node.id)]
    fitting = exact or [node for node in found if node.id.startswith(name)]
    if len(fitting) != 1:
        what = "fits no node" if not fitting else f"fits {len(fitting)} nodes: use the address or the id"
        raise UsageError(f"swarm: node {name!r} {what}", hint=_table(found))
    if fitting[0].down:
        raise FleetError(f"the node {name} is {fitting[0].down}", hint="docker node ls; docker node update")
    return fitting[0]


def _table(found: Sequence[Found]) -> str:
    rows = (f"{node.host} {node.address} {node.id}{f' ({node.down})' if node.down else ''}" for node in found)
    return f"the Swarm's nodes (docker node ls): {'; '.join(rows)}"


def _node(entry: NodeFile, node: Found, file: SwarmFile, name: str, own: str, reserve_cpus: float) -> Node:
    cores = entry.cores or file.cores or node.cores
    if cores > node.cores:
        raise CapacityError(f"swarm: {name} has {node.cores:g} cores, not {cores:g}", hint="state fewer `cores`")
    reserved = file.helper_cpus + (reserve_cpus if node.id == own else 0.0)
    if cores <= reserved:
        raise CapacityError(
            f"swarm: {reserved:g} reserved CPUs leave nothing of the {cores:g} cores of {name}",
            hint="lower reserve_cpus or helper_cpus, state more cores, or leave this node out of `nodes`",
        )
    return Node(node.id, name, node.address, cores, reserved, entry.socket)


# ---- placement -------------------------------------------------------------------------------------------------------


def place(spec: FleetSpec, nodes: Sequence[Node], own: str = "") -> Placement:
    """Give each device, the largest first, to the node that is then least loaded in proportion to its room. The largest
    load is at most 4/3 of the best one (Graham 1969, for nodes of one size).

    Args:
        own: id of the orchestrator's node, on which a server with CPUs of its own runs; "": it runs on none of them.
    """
    load = dict.fromkeys((node.id for node in nodes), 0.0)
    node_of: dict[str, str] = {}
    if own in load and spec.server_cpus is not None:
        load[own], node_of[SERVER] = spec.server_cpus, own
    for device in sorted(spec.here, key=lambda device: -device.profile.limits.cpus):
        cpus = device.profile.limits.cpus
        best = min(nodes, key=lambda node: (load[node.id] + cpus) / node.room)
        load[best.id] += cpus
        node_of[device.name] = best.id
    return Placement(tuple(nodes), node_of)


def quotas(spec: FleetSpec) -> dict[str, float]:
    """CPUs by device, before dilation; those of the server too, if it has any. Boards need none of a node."""
    server = {} if spec.server_cpus is None else {SERVER: spec.server_cpus}
    return server | {device.name: device.profile.limits.cpus for device in spec.here}


def dilation_of_nodes(placement: Placement, fleets: Sequence[FleetSpec], setting: str | float) -> float:
    """The one dilation of a fleet: the largest that any node needs for any of `fleets` (what the fleet is in the course
    of a run; every device keeps its node). `setting`: `auto`, `off` (1, or an error), or a factor of at least 1.

    Raises:
        CapacityError: the fleet does not fit, with the arithmetic; or a quota would be smaller than the kernel accepts.
        UsageError: there is no such setting.
    """
    needed = max(1.0, *(max(placement.needed(quotas(fleet)).values()) for fleet in fleets))
    factor = factor_of(setting, needed)
    sums = arithmetic(placement, fleets)
    asked = "" if setting in ("auto", "off") else f"The experiment asks for {factor:g}. "
    check_boards(fleets[0], factor, asked + sums)
    if factor < needed * (1 - ROUNDING):
        raise CapacityError(
            f"no placement of the fleet {fleets[0].name} at D = {factor:g} was found. {sums}",
            hint=f"use dilation: auto (here {needed:.3g}), fewer or smaller devices, or more nodes",
        )
    for fleet in fleets:
        check_least(fleet, factor, f". {sums}", hint="use fewer large devices beside the smallest one, or more nodes")
    return factor


def arithmetic(placement: Placement, fleets: Sequence[FleetSpec]) -> str:
    """The sums of a placement, in words; of the fleet that needs most."""
    largest = max(fleets, key=lambda fleet: max(placement.needed(quotas(fleet)).values()))
    needed = placement.needed(quotas(largest))
    rows = "; ".join(
        f"{node}, {len(placement.on(node.id))} of them want {needed[node.id] * node.room:.3g}: "
        f"D {max(1.0, needed[node.id]):.3g}"
        for node in placement.nodes
    )
    room = sum(node.room for node in placement.nodes)
    return f"{len(largest.here)} devices want {largest.cpus:.3g} CPUs, the nodes have {room:.3g}: {rows}"


# ---- a lost node -----------------------------------------------------------------------------------------------------


def place_again(
    placement: Placement, cpus: Mapping[str, float], devices: Collection[str], lost: Collection[str]
) -> tuple[Placement, list[str]]:
    """Place devices of lost nodes on the others, the largest first.

    Args:
        cpus: the quotas by device, after dilation.
        lost: ids of nodes.

    Returns:
        The placement, and the devices for which no node has room; these keep their lost node.
    """
    node_of, homeless = dict(placement.node_of), list[str]()
    for device in sorted(devices, key=lambda device: -cpus[device]):
        load = {node.id: sum(cpus[n] for n, id in node_of.items() if id == node.id) for node in placement.nodes}
        fitting = [
            node
            for node in placement.nodes
            if node.id not in lost and load[node.id] + cpus[device] <= node.room * (1 + ROUNDING)
        ]
        if fitting:
            node_of[device] = min(fitting, key=lambda node: (load[node.id] + cpus[device]) / node.room).id
        else:
            homeless.append(device)
    return msgspec.structs.replace(placement, node_of=node_of), homeless


def describe(placement: Placement, factor: float, cpus: Mapping[str, float]) -> Iterator[str]:
    """A line per node: its devices, and how much of its room they take."""
    for node in placement.nodes:
        there = placement.on(node.id)
        used = placement.needed(cpus)[node.id] * node.room / factor
        yield f"{node.name} ({node.address}): {counted(len(there), 'device')}, {used:.3g} of {node.room:.3g} CPUs"
