"""What a fleet file says about the nodes of a Docker Swarm (backend `swarm`). Pure."""

from __future__ import annotations

from typing import Annotated

import msgspec

SOCKET = "/var/run/docker.sock"
Cores = Annotated[float, msgspec.Meta(gt=0, le=1024)]


class NodeFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One node, as a fleet file lists it.

    Attributes:
        node: its host name, address, or the beginning of its id (`docker node ls`); one of them must fit one node only.
        cores: what devices, helper and (on its own node) the orchestrator may use there; None: all that it reports.
        socket: of its engine.
    """

    node: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    cores: Cores | None = None
    socket: str = SOCKET


class SwarmFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The key `swarm` of a fleet file."""

    nodes: list[NodeFile] = []  # those that hold devices; empty: every node that is ready
    cores: Cores | None = None  # of every node whose own entry names none
    address: str = ""  # at which the nodes reach this machine; "": that of the engine's own node
    registry: str = ""  # `host:port/path` from which nodes pull the agent's image; "": it is loaded on each
    # TCP port of the node helpers, and the next one; 0: any
    helper_port: Annotated[int, msgspec.Meta(ge=0, le=65534)] = 0
    helper_cpus: Annotated[float, msgspec.Meta(ge=0, le=64)] = 0.1  # kept free on every node for its helper
