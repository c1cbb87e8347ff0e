"""The interface of a backend: it starts a fleet's agents, holds their limits, and removes everything at the end.

Order of calls: `prepare` (networks; then the broker can listen where devices reach it), `start` (agents without limits,
so that they load quickly), agents join, `limit` per device (set, then read back from the kernel), rounds with further
calls of `limit` at any time, `close`.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec

from edgebed.guarded import Guarded
from edgebed.limits.spec import Held as Held
from edgebed.limits.spec import Limits
from edgebed.link.connection import Address
from edgebed.link.probe_server import Received

ALONE = "EDGEBED_ALONE_S"
"""The environment variable with the number of seconds after which an agent without an orchestrator ends. A fleet passes
it on to its agents."""


class Enforcement(enum.StrEnum):
    """What enforces the limits. It is printed on every output."""

    DOCKER = "docker"
    KERNEL = "kernel"
    SOFTWARE = "software"
    UNLIMITED = "unlimited"
    """Nothing: all devices are real boards."""


class Access(Guarded, frozen=True):
    """How an agent reaches the broker."""

    host: str
    port: int
    username: str
    password: str


class BrokerAccess(Protocol):
    """Tells the fleet how a device reaches the broker."""

    @property
    def address(self) -> Address:
        """The orchestrator's."""
        ...

    def pid(self) -> int | None:
        """The broker's process on this host, if it is ours."""
        ...

    def access(self, host: str, device: str) -> Access:
        """Address and user for a device that reaches this machine as `host`."""
        ...


class TlsListener(Guarded, frozen=True):
    """An address at which the broker listens with TLS for agents on other hosts, and what it shows and believes there
    (PEM). Agents still have their own users and passwords."""

    address: str
    ca: bytes
    certificate: bytes
    key: bytes


class Certifier(Protocol):
    """A certificate authority of one run. All is PEM; the clock's time is `now`."""

    @property
    def pem(self) -> bytes:
        """Its own certificate."""
        ...

    def client_pair(self, name: str, now: datetime) -> tuple[bytes, bytes]:
        """Key and certificate of a client with this common name."""
        ...

    def server_pair(self, hosts: Iterable[str], now: datetime) -> tuple[bytes, bytes]:
        """Key and certificate of a server under these names and addresses."""
        ...


class ProbePeer(Protocol):
    """The other end of a device's link probes."""

    def port(self, address: str) -> int:
        """To which a device connects that reaches it at `address`."""
        ...

    async def expect(self, probe_id: str) -> asyncio.Future[Received]:
        """Announce a probe. The future holds what was received, or the error."""
        ...

    async def forget(self, probe_id: str) -> None: ...


class FarEnd(Protocol):
    """The other ends of a fleet's link probes. They listen while the `async with` block runs."""

    async def __aenter__(self) -> FarEnd: ...
    async def __aexit__(self, *_: object) -> None: ...
    def of(self, device: str) -> ProbePeer: ...


class NodeReading(msgspec.Struct, frozen=True):
    """Counters of a host of devices at one moment, in seconds since any start.

    Attributes:
        machine: the same for hosts that share a machine.
        at_s: on its clock.
        used_s, stolen_s: CPU seconds of all programs, and those that its hypervisor gave to others.
        helper_s: of our helper there.
        cpus: the quotas of its devices together.
        load: mean of the last minute.
        clock_s, clock_error_s: its clock (UTC) minus ours, and the error of that.
        drift_s: by how much its steady clock has moved against ours since it was first asked.
    """

    name: str
    machine: str
    cores: float
    at_s: float
    used_s: float
    stolen_s: float
    helper_s: float
    cpus: float
    load: float
    clock_s: float | None = None
    clock_error_s: float | None = None
    drift_s: float | None = None


@runtime_checkable
class ManyHosts(Protocol):
    """What a fleet on other hosts has beside what `Fleet` says."""

    def dilation(self) -> tuple[float, str]:
        """The fleet's dilation, and what set it. Call it after `prepare`, which may find that the network between the
        hosts needs a larger one than was admitted."""
        ...

    def nodes(self) -> list[NodeReading]:
        """The hosts as they were heard of last, about a second ago."""
        ...

    def tls_listener(self) -> TlsListener:
        """Where the broker must listen for it. Call it after `prepare`."""
        ...

    def far_end(self) -> FarEnd:
        """Link probes end on the host of their device, not here."""
        ...


class Fleet(Protocol):
    """A running fleet of one backend."""

    enforcement: Enforcement
    backend: str

    async def prepare(self) -> list[str]:
        """Make the networks. Returns the host addresses on which the broker and the link probes must listen."""

    def host_of(self, device: str) -> str:
        """The address at which `device` reaches the host. Call it after `prepare`."""

    def pins(self, device: str) -> bool:
        """Whether agents of this device run only where this backend has started them. Then another agent with the
        device's name is refused until the backend starts one."""

    async def start(self, access: Mapping[str, Access], shards: Mapping[str, Path]) -> None:
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
        """Stop the agents and remove everything this fleet made. Does not raise for things that are already gone."""
