"""The two sides between a fleet and whoever sends tasks to its devices."""

from __future__ import annotations

from typing import Protocol

from edgebed.link.endpoint import Sent
from edgebed.link.receiver import ReceivedTransfer
from edgebed.wire.messages import Control, Header


class Driver(Protocol):
    """Whoever sends tasks to the devices: the driver of rounds, or the router of requests."""

    def admit(self, peer: str, header: Header, size: int) -> None: ...
    async def deliver(self, inbound: ReceivedTransfer) -> None: ...
    def progress(self, device: str) -> None: ...
    def heard(self, device: str, moved: bool, task: str, phase: str) -> None: ...
    def lost(self, device: str, why: str) -> None: ...


class Sender(Protocol):
    """What a driver needs to send to devices: `link.endpoint.TransferEndpoint`, or the simulated fleet."""

    async def send(self, peer: str, header: Header, body: bytes | bytearray) -> Sent: ...
    def control(self, peer: str, message: Control) -> None: ...
    def forget(self, peer: str) -> None: ...
