"""What a backend is: it starts a fleet's agents, holds their limits, and lets go of everything at the end.

Order of calls: `prepare` (networks; the broker can then listen where devices reach it) -> `start` (agents, unlimited so
that they load quickly) -> agents join -> `limit` per device (set, then read back from the kernel) -> rounds, with
`limit` again at any time -> `close`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from orchestrator.fleet.profile import Limits

ALONE = "EDGEBED_ALONE_S"
"""The environment variable that says after how many seconds without an orchestrator an agent ends; handed on to it."""


class Enforcement(enum.StrEnum):
    """Who holds the limits; printed on every output."""

    DOCKER = "docker"
    KERNEL = "kernel"
    SOFTWARE = "software"


class Access(msgspec.Struct, frozen=True):
    """How an agent reaches the broker."""

    host: str
    port: int
    username: str
    password: str


class BrokerAccess(Protocol):
    """The broker, as the fleet knows it: how a device reaches it."""

    def access(self, host: str) -> Access:
        """Address and user for a device that calls this host `host`."""
        ...


class Held(msgspec.Struct, frozen=True):
    """Limits of one device as the kernel reports them, and what the device has used since its start.

    Where `read_back` is False the agent holds its limits itself: nothing here may be taken for a limit in force, or for
    the lack of one, and only `cpu_s` and `memory_used_mib` are measured.
    """

    device: str
    requested: Limits
    cpus: float | None  # None: no quota is in force
    uplink_bit_s: int | None
    downlink_bit_s: int | None
    memory_mib: int | None
    cpu_s: float  # used
    throttled_s: float
    throttled_periods: int
    memory_used_mib: float
    uplink_bytes: int
    downlink_bytes: int
    alive: bool
    details: dict[str, str] = {}  # raw read-outs (qdisc, cgroup files) for the report
    uplink_latency_ms: float = 0.0
    downlink_latency_ms: float = 0.0
    read_back: bool = True


class Fleet(Protocol):
    """A standing fleet of one backend."""

    enforcement: Enforcement
    backend: str

    async def prepare(self) -> list[str]:
        """Make networks; returns the host addresses on which the broker (and link probes) must listen."""

    def host_of(self, device: str) -> str:
        """The address at which `device` reaches the host, once prepared."""

    async def start(self, access: Mapping[str, Access], shards: Mapping[str, Path]) -> None:
        """Start one agent per device without limits. Raises FleetError with cause and hint."""

    async def limit(self, device: str, limits: Limits) -> Held:
        """Set limits, read them back, return what holds. Raises LimitError where the two differ by over 1 %."""

    async def held(self, device: str) -> Held: ...

    async def restart(self, device: str) -> None:
        """Start the agent of one device anew (after it died); its limits must be put on again after it joins."""

    def on_exit(self, callback: Callable[[str, str], None]) -> None:
        """Call `callback(device, why)` in the event loop when an agent's process ends by itself."""

    async def close(self) -> None:
        """Stop the agents and remove everything this fleet made. Never raises for what is already gone."""
