"""The interface of a backend: it starts a fleet's agents, holds their limits, and removes everything at the end.

Order of calls: `prepare` (networks; then the broker can listen where devices reach it), `start` (agents without limits,
so that they load quickly), agents join, `limit` per device (set, then read back from the kernel), rounds with further
calls of `limit` at any time, `close`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from edgebed.limits.spec import Held as Held
from edgebed.limits.spec import Limits
from edgebed.link.connection import Address

ALONE = "EDGEBED_ALONE_S"
"""The environment variable with the number of seconds after which an agent without an orchestrator ends. A backend
passes it on to its agents."""

INSTRUCTIONS = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA")
"""Environment variables that choose which of the core's instructions torch uses. Local and docker agents have those of
the orchestrator: with other instructions the same host is another kind of core."""


class Enforcement(enum.StrEnum):
    """What enforces the limits. It is printed on every output."""

    DOCKER = "docker"
    KERNEL = "kernel"
    SOFTWARE = "software"
    UNLIMITED = "unlimited"
    """Nothing: all devices are real boards."""


class BrokerAccess(Protocol):
    """Tells how a device reaches the broker."""

    @property
    def address(self) -> Address:
        """The orchestrator's."""

    def pid(self) -> int | None:
        """The broker's process on this host, if it is ours."""

    def access(self, host: str, device: str) -> Address:
        """Address and user for a device that reaches this machine as `host`."""


class Backend(Protocol):
    """What starts the agents of a fleet and holds their limits, for one fleet. `name`: in records and messages."""

    enforcement: Enforcement
    name: str

    async def prepare(self) -> list[str]:
        """Make the networks. Returns the host addresses on which the broker and the link probes must listen."""

    def host_of(self, device: str) -> str:
        """The address at which `device` reaches the host. Call it after `prepare`."""

    def pins(self, device: str) -> bool:
        """Whether agents of this device run only where this backend has started them. Then another agent with the
        device's name is refused until the backend starts one."""

    async def start(self, access: Mapping[str, Address], shards: Mapping[str, Path]) -> None:
        """Start one agent per device without limits. Raises FleetError."""

    async def limit(self, device: str, limits: Limits) -> Held:
        """Set limits and return them as read back. Raises LimitError if the two differ by more than 1 %."""

    async def held(self, device: str) -> Held: ...

    async def set_rates(self, device: str, limits: Limits) -> tuple[int, int]:
        """Change only the rates of a device whose limits are on, in about a millisecond. Returns uplink and downlink in
        bit/s as read back. Raises LimitError."""

    async def set_link(self, device: str, up: bool) -> str:
        """Cut the device's link, or mend it. Returns what was read back, in words. Raises LimitError."""

    async def set_frozen(self, device: str, frozen: bool) -> str:
        """Stop every process of the device, or let them go on. Returns what was read back. Raises FleetError."""

    async def set_rival(self, device: str, cpus: float) -> str:
        """Have busy processes inside the device's quota that want so many CPUs; 0 ends them. Returns what was read
        back. Raises FleetError."""

    async def stop(self, device: str) -> None:
        """End a device's agent, and report it as any end. `restart` starts it again. Raises FleetError."""

    async def restart(self, device: str) -> None:
        """Start a device's agent again after it died. Its limits must be set again after it joins."""

    def on_exit(self, callback: Callable[[str, str], None]) -> None:
        """Call `callback(device, why)` in the event loop when an agent's process ends unexpectedly."""

    async def close(self) -> None:
        """Stop the agents and remove everything this backend made. Does not raise for things that are already gone."""
