"""Chooses the backend of a fleet. If the backend cannot run here, the error says what is missing."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from edgebed.errors import FleetError, LimitError, UsageError
from edgebed.limits.cgroups import version_of
from edgebed.limits.shell import missing_tools
from orchestrator.fleet.base import Certifier, Fleet
from orchestrator.fleet.host.cpus import Admitted, admit
from orchestrator.fleet.local.backend import LocalFleet
from orchestrator.fleet.spec.profile import FleetSpec
from orchestrator.fleet.swarm.admitted import AdmittedToSwarm

BACKENDS = ("docker", "local", "software", "swarm")


def open_backend(
    spec: FleetSpec, backend: str, fleet_id: str, notify: Callable[[str], None] = lambda line: None
) -> Fleet:
    """Create the fleet of a backend of this host, without preparing it.

    Args:
        backend: `docker`; `local` (namespaces and cgroups as root, otherwise the software throttle); or `software`
            (`local` with the software throttle, also as root).

    Raises:
        FleetError: the backend cannot run here. UsageError: there is no such backend.
    """
    if backend == "docker":
        _need_docker()
        from orchestrator.fleet.docker.backend import DockerFleet

        return DockerFleet(spec, fleet_id, notify=notify)
    check_backend(backend)
    if backend == "swarm":
        raise UsageError("a fleet on a Swarm is opened with `open_swarm`")
    why = "software was asked for" if backend == "software" else kernel_obstacle()
    if why:
        notify(f"limits are held by the agents themselves (software): {why}")
        _refuse_latency(spec)
    return LocalFleet(spec, fleet_id, kernel=not why)


def open_swarm(
    spec: FleetSpec,
    fleet_id: str,
    admitted: AdmittedToSwarm,
    ca: Certifier,
    folder: Path,
    notify: Callable[[str], None] = lambda line: None,
) -> Fleet:
    """Create a fleet on a Swarm, without preparing it.

    Args:
        ca: of this run.
        folder: for the orchestrator's key.
    """
    from orchestrator.fleet.swarm.backend import SwarmFleet

    return SwarmFleet(spec, fleet_id, admitted, ca, folder, notify=notify)


def admit_to(backend: str, fleet_id: str, fleets: Sequence[FleetSpec], setting: str | float) -> Admitted:
    """As `host_cpus.admit`; on a Swarm, as `admit_swarm`."""
    if backend != "swarm":
        return admit(fleet_id, backend, fleets, setting)
    _need_docker()
    from orchestrator.fleet.swarm.admission import admit_swarm

    return admit_swarm(fleet_id, fleets, setting)


def _need_docker() -> None:
    try:
        import docker.errors  # noqa: F401  # `import docker` alone finds any folder of that name
    except ImportError:
        raise FleetError(
            "the docker SDK is not installed", hint="pip install 'edgebed[orchestrator]', or --backend local"
        ) from None


def check_backend(backend: str) -> None:
    """Raises UsageError if there is no such backend."""
    if backend not in BACKENDS:
        raise UsageError(f"there is no backend {backend!r}", hint=f"choose one of: {', '.join(BACKENDS)}")


def kernel_obstacle() -> str:
    """Why this process cannot limit other processes through the kernel; empty if it can."""
    if os.geteuid() != 0:
        return "not root"
    if missing := missing_tools("ip", "tc", "nsenter"):
        return f"no {', '.join(missing)} (apt-get install iproute2 util-linux)"
    try:
        version_of()
    except LimitError as error:
        return str(error)
    return ""


def _refuse_latency(spec: FleetSpec) -> None:
    for device in spec.here:
        if device.profile.limits.latency_ms:
            raise FleetError(
                f"{device.name}: the software throttle cannot add latency",
                hint="remove latency_ms from the profile, or run as root",
            )
