"""What `open_broker` needs of a way to run a broker. A file of this package that has `find` is such a way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from edgebed.guarded import Guarded
from orchestrator.fleet.many_hosts import TlsListener

BACKLOG = 512
"""Connections that wait until the broker accepts them, for sockets that it inherits."""


class Listen(Guarded, frozen=True):
    """Where a broker of ours listens and whom it lets in."""

    addresses: list[str]
    port: int
    users: dict[str, str]  # passwords by user: the orchestrator's, and one for each device, whose name it is
    fleet: str = ""  # id of the fleet whose topics the devices use
    # where it also listens, on the same port, for those who show a certificate; they log in all the same
    tls: TlsListener | None = None
    # descriptors of sockets that listen there already, in the order of `addresses`, that of `tls` last; for a broker
    # that inherits them. Nobody else can have the port then, also after the broker's end
    sockets: Sequence[int] = ()

    @property
    def most_connections(self) -> int:
        """On one address: a device has two, and two more while it is replaced."""
        return 256 + 4 * len(self.users)


class Runner(Protocol):
    """A way to run a broker. `start` returns once the broker is being started; `failure` says why it ended, "" while
    it runs. `inherits`: it takes `Listen.sockets`. Any other opens the port by itself, and `mosquitto.socket_path`
    for us."""

    kind: str
    inherits: bool

    async def start(self, listen: Listen, folder: Path) -> None: ...
    async def stop(self) -> None: ...
    def failure(self) -> str: ...
    def pid(self) -> int | None:
        """Its process on this host; None where it has none."""
