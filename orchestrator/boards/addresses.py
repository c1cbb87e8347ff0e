"""Under which names and addresses boards may reach this host. An address may come when the service already runs: of a
network that was not there at boot, or another one from a router."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

import psutil

from orchestrator.fleet.network.netns import HOST_END

LOOPBACK = "127.0.0.1"


def main_address() -> str:
    """Of the route to other networks; loopback without one. A connection of UDP sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))  # an address for documentation (RFC 5737)
            return str(sock.getsockname()[0])
        except OSError:
            return LOOPBACK


def all_names(hosts: Sequence[str]) -> list[str]:
    """For the server's certificate: `hosts`, this host's name, and all its addresses but those of fleets' links."""
    rows = [row for name, rows in psutil.net_if_addrs().items() if not HOST_END.match(name) for row in rows]
    found = [row.address.split("%")[0] for row in rows if row.family in (socket.AF_INET, socket.AF_INET6)]
    return list(dict.fromkeys([*hosts, socket.gethostname(), "localhost", *found]))


def lacking(certified: Sequence[str], names: Sequence[str]) -> list[str]:
    """Names that the certificate lacks. Link-local addresses do not count: every new interface has one, also those
    that fleets make."""
    return [name for name in names if name not in certified and not _link_local(name)]


def _link_local(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_link_local
    except ValueError:
        return False
