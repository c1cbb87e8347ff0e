"""Starts the node helpers of a fleet: a service for each node, with a certificate of its own."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import docker.types
import msgspec

from edgebed.errors import FleetError
from edgebed.wire.topics import ORCHESTRATOR
from orchestrator.fleet.base import ALONE
from orchestrator.fleet.many_hosts import Certifier
from orchestrator.fleet.ownership import OWNER, this_process
from orchestrator.fleet.swarm.clocks import Clock, clock_of, refuse_wrong
from orchestrator.fleet.swarm.manager import Manager
from orchestrator.fleet.swarm.node_link import Credentials, NodeLink
from orchestrator.fleet.swarm.placement import Node

SOCKET = "/engine.sock"
HELPER = "edgebed.node-helper"
"""Label of a helper's container; its value is the node's id."""

PORTS = range(20_000, 30_000, 2)
"""Below the ports that Linux gives to connections that go out."""

START_S, PULL_S = 60.0, 900.0
"""Until a helper runs: on a node that has the image, and on one that may have to pull it from a registry."""
MOST_PROCESSES = 1024
MOST_MEMORY = 1 << 30
"""Bytes. An idle helper has 30 MiB. Strangers add 170 MiB when both ports are full of them, and a connection that it
forwards 1.3 MiB at most; a device has two. The rest is for the kernel's buffers, which count too: up to 6 MiB where the
data of a connection wait. So 50 devices have room that wait all at once.
"""


def write_credentials(folder: Path, ca: Certifier) -> Credentials:
    """Of the orchestrator, in files."""
    key, certificate = ca.client_pair(ORCHESTRATOR, dt.datetime.now(dt.UTC))
    for name, data in (("ca.pem", ca.pem), ("certificate.pem", certificate), ("key.pem", key)):
        path = folder / name
        path.touch(0o600)
        path.write_bytes(data)
    return Credentials(folder)


async def start_helpers(
    manager: Manager,
    nodes: Sequence[Node],
    image: str,
    fleet_id: str,
    ca: Certifier,
    credentials: Credentials,
    port: int,
) -> dict[str, NodeLink]:
    """A link to the helper of every node, by the node's id.

    Raises:
        FleetError: one did not start, because the node has not the image, say; or the clock of its node is wrong.
    """
    began_s = time.time()
    services = await asyncio.to_thread(_make, manager, nodes, image, fleet_id, ca, port)
    try:
        await asyncio.to_thread(manager.wait_running, services, PULL_S if "@" in image else START_S)
    except FleetError as error:
        if "address already in use" in str(error).lower():
            raise FleetError(str(error), hint="name another helper_port in the fleet file") from None
        raise
    refuse_wrong(await asyncio.to_thread(_clocks_at_start, manager, nodes, services, began_s))
    links = {node.id: NodeLink(node, credentials, port) for node in nodes}
    await asyncio.gather(*(link.open() for link in links.values()))
    return links


def _clocks_at_start(
    manager: Manager, nodes: Sequence[Node], services: Mapping[str, str], began_s: float
) -> list[Clock]:
    """The nodes' clocks as their engines told them when the helpers started: TLS with a helper fails if its clock is
    very wrong, and does not say why."""
    tasks = manager.tasks(services.values())
    pairs = [(node.name, tasks[id]) for node, id in zip(nodes, services.values(), strict=True) if id in tasks]
    return [clock_of(name, began_s, task.at_s, time.time()) for name, task in pairs]


def _make(
    manager: Manager, nodes: Sequence[Node], image: str, fleet_id: str, ca: Certifier, port: int
) -> dict[str, str]:
    """Services by a name for messages."""
    services, owner = {}, {OWNER: str(this_process())}
    for number, node in enumerate(nodes):
        name = f"edgebed-node-{number}-{fleet_id}"  # no device has such a name
        secret = manager.make_secret(name, settings(ca, node.address, port), "node.json", 0o400)
        services[f"the helper of {node.name}"] = manager.run(
            name, node.id, _container(image, node, secret),
            network="host", labels={**owner, HELPER: node.id}, most_processes=MOST_PROCESSES,
            most_memory=MOST_MEMORY,
        )  # fmt: skip
    return services


def settings(ca: Certifier, address: str, port: int) -> bytes:
    """What a helper reads (`edge_agent.node.settings.HelperSettings`)."""
    now = dt.datetime.now(dt.UTC)
    key, certificate = ca.server_pair([address], now)
    client_key, client_certificate = ca.client_pair("node", now)
    pems = {
        "ca": ca.pem, "certificate": certificate, "key": key,
        "client_certificate": client_certificate, "client_key": client_key,
    }  # fmt: skip
    alone_s = float(os.environ.get(ALONE, "1800"))
    return msgspec.json.encode({**{name: pem.decode() for name, pem in pems.items()}, "port": port, "alone_s": alone_s})


def _container(image: str, node: Node, secret: Mapping[str, str]) -> dict[str, Any]:
    """Root without capabilities: it opens the engine's socket, which is root's, and nothing else."""
    return {
        "image": image,
        "command": ["python", "-m", "edge_agent.node"],
        "user": "root",
        "cap_drop": ["ALL"],
        "read_only": True,
        "mounts": [
            docker.types.Mount(SOCKET, node.socket, type="bind"),
            docker.types.Mount("/tmp", None, type="tmpfs", tmpfs_size=1 << 24),
        ],
        "secrets": [secret],
        "init": True,
    }
