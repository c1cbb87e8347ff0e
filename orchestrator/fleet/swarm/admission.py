"""Whether a fleet fits a Swarm, where its devices go, and its one dilation."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

import msgspec

from edgebed.errors import CapacityError, FleetError
from orchestrator.fleet.docker.image import has_image
from orchestrator.fleet.engine import connect, engine_errors
from orchestrator.fleet.host.cores import usable_cores
from orchestrator.fleet.host.cpus import Admitted, Claim, Standing, lock, standing, taken_cpus
from orchestrator.fleet.network.links import beside_us
from orchestrator.fleet.spec.profile import FleetSpec
from orchestrator.fleet.spec.swarm import SwarmFile
from orchestrator.fleet.swarm.checkup import Swarm
from orchestrator.fleet.swarm.clocks import Clock
from orchestrator.fleet.swarm.kernel_clock import ask_clocks
from orchestrator.fleet.swarm.manager import Manager
from orchestrator.fleet.swarm.placement import Found, Placement, choose_nodes, dilation_of_nodes, place, quotas

ENGINE_S = 20


class AdmittedToSwarm(Admitted, frozen=True, kw_only=True):
    """`placement`: which node has which device; `fleets`: what the fleet will be; `setting`: of the dilation."""

    placement: Placement
    fleets: tuple[FleetSpec, ...]
    setting: str | float

    def with_dilation(self, factor: float) -> AdmittedToSwarm:
        """With a larger dilation, because of the network between the hosts. Raises CapacityError: a quota would be
        smaller than the kernel accepts."""
        dilation_of_nodes(self.placement, self.fleets, factor)
        return msgspec.structs.replace(self, dilation=factor, set_by="network")

    @property
    def may_grow(self) -> bool:
        """Whether a larger dilation may be chosen."""
        return self.setting == "auto" and not any(fleet.unlimited for fleet in self.fleets)


def admit_swarm(name: str, fleet_id: str, fleets: Sequence[FleetSpec], setting: str | float) -> AdmittedToSwarm:
    """Place a fleet on the Swarm's nodes, beside the fleets that stand on this host, and claim its CPUs here.

    Args:
        name: of the backend.
        fleets: what the fleet will be in the course of the run.
        setting: as in `dilation_of`.

    Raises:
        CapacityError: the fleet fits no placement, with the arithmetic.
        FleetError, UsageError: no Swarm, or `nodes` of the fleet file do not fit it.
    """
    with contextlib.closing(connect(ENGINE_S)) as client:
        manager = Manager(client, {})
        found, own = manager.nodes(), manager.node_id if beside_us(client) else ""
    with lock():
        others = standing()
        placement = _place(found, own, fleets[0], _beyond(found, own, fleets[0], taken_cpus(others)))
        factor = dilation_of_nodes(placement, fleets, setting)
        here = max(_cpus_on(placement, own, fleet) for fleet in fleets) / factor
        spec = fleets[0]
        boards = tuple(device.name for device in spec.boards)
        reserve = spec.reserve_cpus if own else 0.0
        claim = Claim(Standing(fleet_id, spec.name, name, here, reserve, os.getpid(), boards))
    alone = _alone(found, own, fleets, setting, factor)
    set_by = "" if factor <= 1 else "CPUs" if setting == "auto" else "the experiment"
    return AdmittedToSwarm(
        factor, alone, others, claim, set_by, placement=placement, fleets=tuple(fleets), setting=setting
    )


def find_swarm() -> Swarm:
    """The Swarm that this host's engine manages, as `edgebed doctor` shows it."""
    try:
        with contextlib.closing(connect(ENGINE_S)) as client, engine_errors("the engine does not answer"):
            manager = Manager(client, {})
            own = manager.node_id if beside_us(client) else ""
            nodes = tuple(manager.nodes())
            clocks, why = _clocks(nodes)
            return Swarm(nodes, own, has_image(client), clocks, why)
    except FleetError as error:
        return Swarm(error=str(error), hint=error.hint)


def _clocks(nodes: Sequence[Found]) -> tuple[tuple[Clock, ...], str]:
    """Of the nodes that answer, and why none was asked."""
    try:
        return tuple(ask_clocks({str(node): node.address for node in nodes if not node.down})), ""
    except PermissionError:
        return (), "asking needs root"


def _place(found: Sequence[Found], own: str, spec: FleetSpec, taken: float) -> Placement:
    nodes = choose_nodes(found, spec.swarm or SwarmFile(), own, spec.reserve_cpus + taken)
    return place(spec, nodes, own)


def _beyond(found: Sequence[Found], own: str, spec: FleetSpec, taken: float) -> float:
    """CPUs that other fleets take of those that this fleet may use on the orchestrator's node."""
    stated = [node.cores for node in choose_nodes(found, spec.swarm or SwarmFile(), "", 0.0) if node.id == own]
    return max(0.0, taken - (usable_cores() - stated[0])) if stated else 0.0


def _cpus_on(placement: Placement, own: str, spec: FleetSpec) -> float:
    return sum(cpus for name, cpus in quotas(spec).items() if placement.node_of.get(name) == own)


def _alone(found: Sequence[Found], own: str, fleets: Sequence[FleetSpec], setting: str | float, factor: float) -> float:
    try:
        return dilation_of_nodes(_place(found, own, fleets[0], 0.0), fleets, setting)
    except CapacityError:  # it fits with fewer CPUs, but not by this placement
        return factor
