"""The far end of a fleet's link probes: in this process, or where the fleet has it."""

from __future__ import annotations

from collections.abc import Collection

from edgebed.link.probe_server import ProbeServer
from orchestrator.fleet.base import FarEnd, Fleet, ManyHosts, ProbePeer


def far_end(fleet: Fleet, devices: Collection[str]) -> FarEnd:
    return fleet.far_end() if isinstance(fleet, ManyHosts) else _Here(fleet, devices)


class _Here:
    """In this process, on this host's ends of the devices' links."""

    def __init__(self, fleet: Fleet, devices: Collection[str]) -> None:
        self._server = ProbeServer(fleet.host_of(device) for device in devices)

    async def __aenter__(self) -> FarEnd:
        await self._server.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.__aexit__()

    def of(self, device: str) -> ProbePeer:
        return self._server
