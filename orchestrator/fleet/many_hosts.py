"""What a backend has beside `base.Backend` where its devices are on other hosts, and what it is given."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Protocol, runtime_checkable

import msgspec

from edgebed.guarded import Guarded
from edgebed.link.probe_server import Received


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

    def client_pair(self, name: str, now: datetime) -> tuple[bytes, bytes]:
        """Key and certificate of a client with this common name."""

    def server_pair(self, hosts: Iterable[str], now: datetime) -> tuple[bytes, bytes]:
        """Key and certificate of a server under these names and addresses."""


class ProbePeer(Protocol):
    """The other end of a device's link probes."""

    def port(self, address: str) -> int:
        """To which a device connects that reaches it at `address`."""

    async def expect(self, probe_id: str) -> asyncio.Future[Received]:
        """Announce a probe. The future holds what was received, or the error."""

    async def forget(self, probe_id: str) -> None: ...


FarEnds = AbstractAsyncContextManager[Mapping[str, ProbePeer]]
"""The other ends of link probes, by device. They listen while the `async with` block runs."""


class NodeReading(msgspec.Struct, frozen=True):
    """Counters of a host of devices at one moment, in seconds since any start."""

    name: str
    machine: str  # the same for hosts that share a machine
    cores: float
    at_s: float  # on its clock
    # `used_s`, `stolen_s`: CPU seconds of all programs, and those that its hypervisor gave to others
    used_s: float
    stolen_s: float
    helper_s: float  # of our helper there
    cpus: float  # the quotas of its devices together
    load: float  # mean of the last minute
    # `clock_s`, `clock_error_s`: its clock (UTC) minus ours, and the error of that
    clock_s: float | None = None
    clock_error_s: float | None = None
    drift_s: float | None = None  # by how much its steady clock has moved against ours since it was first asked


@runtime_checkable
class ManyHosts(Protocol):
    """What a backend on other hosts has beside the calls of `Backend`."""

    def dilation(self) -> tuple[float, str]:
        """The fleet's dilation, and what set it. Call it after `prepare`, which may find that the network between the
        hosts needs a larger one than was admitted."""

    def nodes(self) -> list[NodeReading]:
        """The hosts as they were heard of last, about a second ago."""

    def tls_listener(self) -> TlsListener:
        """Where the broker must listen for it. Call it after `prepare`."""

    def far_ends(self) -> FarEnds:
        """Link probes end on the host of their device, not here."""
