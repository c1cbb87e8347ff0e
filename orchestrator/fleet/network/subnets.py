"""Chooses subnets that nothing on the host uses. The choice is pure; the used subnets are read from the kernel."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Network

from edgebed.errors import FleetError
from edgebed.limits.shell import run

DOCKER_POOL = IPv4Network("10.83.0.0/16")
LOCAL_POOL = IPv4Network("10.84.0.0/16")
SWARM_POOL = IPv4Network("10.85.0.0/16")


def free_subnets(pool: IPv4Network, prefix: int, taken: Iterable[IPv4Network]) -> Iterator[IPv4Network]:
    """Subnets of `pool` of that prefix length that overlap none of `taken`, in order. Raises FleetError at the end."""
    taken = [net for net in taken if net.overlaps(pool)]
    for subnet in pool.subnets(new_prefix=prefix):
        if not any(subnet.overlaps(net) for net in taken):
            yield subnet
    raise FleetError(f"no subnet of {pool} is free", hint="remove unused networks (docker network prune), or routes")


def host_networks() -> list[IPv4Network]:
    """Networks to which the host has routes."""
    return parse_routes(run(["ip", "-j", "-4", "route", "show", "table", "all"]))


def parse_routes(output: str) -> list[IPv4Network]:
    """Networks in the output of `ip -j route`, without the default route."""
    found = []
    for route in json.loads(output or "[]"):
        destination = str(route.get("dst", "default"))
        if destination != "default":
            found.append(IPv4Network(destination, strict=False))
    return found
