"""The classes of the backends that a fleet file can name: how one is found, admits a fleet, and is opened."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

import msgspec

from edgebed.errors import FleetError
from orchestrator.fleet.backends import BACKENDS, check_backend
from orchestrator.fleet.base import Backend
from orchestrator.fleet.host.checkup import HostNeeds
from orchestrator.fleet.host.cpus import Admitted, admit
from orchestrator.fleet.making import CleanUp
from orchestrator.fleet.many_hosts import Certifier
from orchestrator.fleet.spec.profile import FleetSpec


class Opening(msgspec.Struct, frozen=True):
    """What a backend is opened with."""

    spec: FleetSpec  # the devices; none of them is a board
    fleet_id: str  # unique on this host
    admitted: Admitted  # what `admit` of the class returned
    folder: Path  # of the fleet, for this user only
    certifier: Callable[[Path], Certifier]  # makes the certificate authority of the run, with its key in a folder
    notify: Callable[[str], None]  # called with a line of progress
    plugins: Path | None = None  # folder of the plug-ins that the agents are to use; None: they use none


class NamedBackend(ABC):
    """A backend that a fleet file can name. `needs`: of this host; `edgebed doctor` checks them, and `admit` reads
    them."""

    needs: ClassVar[HostNeeds] = HostNeeds()

    def __init__(self) -> None:
        self._exit: Callable[[str, str], None] = lambda device, why: None
        self._clean_up = CleanUp(self._close)

    @classmethod
    def admit(cls, name: str, fleet_id: str, fleets: Sequence[FleetSpec], setting: str | float) -> Admitted:
        """As `host.cpus.admit`: here the devices take CPUs of this host alone."""
        return admit(name, fleet_id, fleets, setting, over_links=not cls.needs.software)

    @classmethod
    @abstractmethod
    def open(cls, opening: Opening) -> Backend:
        """The backend for a fleet, not prepared. Raises FleetError if it cannot run here."""

    def pins(self, device: str) -> bool:
        return True

    def on_exit(self, callback: Callable[[str, str], None]) -> None:
        self._exit = callback

    async def close(self) -> None:
        """Runs to its end even if the caller is cancelled. A second call does nothing."""
        await self._clean_up.finish()

    @abstractmethod
    async def _close(self) -> None:
        """Stop the agents and remove what was made."""


def backend_class(name: str) -> type[NamedBackend]:
    """Load a backend's class. Raises UsageError: there is no such backend; FleetError: it needs a package that is not
    installed."""
    check_backend(name)
    module, _, cls = BACKENDS[name].partition(":")
    try:
        found: type[NamedBackend] = getattr(importlib.import_module(module), cls)
    except ModuleNotFoundError as error:
        raise FleetError(
            f"the backend {name} needs the Python package {error.name}, which is not installed",
            hint="pip install './edgebed-VERSION-py3-none-any.whl[orchestrator]', or choose another --backend",
        ) from None
    return found
