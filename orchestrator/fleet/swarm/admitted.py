"""A fleet that may start on a Swarm."""

from __future__ import annotations

import msgspec

from orchestrator.fleet.host.cpus import Admitted
from orchestrator.fleet.spec.profile import FleetSpec
from orchestrator.fleet.swarm.placement import Placement, dilation_of_nodes


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
