"""The backend `software`: processes of this host whose agents hold their own limits."""

from __future__ import annotations

from orchestrator.fleet.host.checkup import HostNeeds
from orchestrator.fleet.local.backend import LocalBackend


class SoftwareBackend(LocalBackend):
    """The backend `local` with the software throttle, also as root. Records call it `local`, with the enforcement
    `software`."""

    needs = HostNeeds(software=True)

    @staticmethod
    def kernel_obstacle() -> str:
        return "software was asked for"
