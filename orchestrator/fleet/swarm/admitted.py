"""A fleet that may start on a Swarm."""

from __future__ import annotations

from orchestrator.fleet.host_cpus import Admitted
from orchestrator.fleet.swarm.placement import Placement


class AdmittedToSwarm(Admitted, frozen=True, kw_only=True):
    """`placement`: which node has which device."""

    placement: Placement
