"""The backends that a fleet file can name. A new one is a class of `named.NamedBackend` and a line here. Pure."""

from __future__ import annotations

from edgebed.errors import UsageError

BACKENDS = {
    "docker": "orchestrator.fleet.docker.backend:DockerBackend",
    "local": "orchestrator.fleet.local.backend:LocalBackend",
    "software": "orchestrator.fleet.local.backend:SoftwareBackend",
    "swarm": "orchestrator.fleet.swarm.backend:SwarmBackend",
}
"""Module and class by name. A module is loaded when its backend is asked for."""

DEFAULT = "local"


def choices() -> str:
    """All names, for messages."""
    *others, last = BACKENDS
    return f"{', '.join(others)} or {last}"


def check_backend(name: str) -> None:
    """Raises UsageError if there is no such backend."""
    if name not in BACKENDS:
        raise UsageError(f"there is no backend {name!r}", hint=f"choose one of: {', '.join(BACKENDS)}")
