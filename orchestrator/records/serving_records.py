"""The records of the requests of a serving method (early exits). Pure."""

from __future__ import annotations

import msgspec


class Hop(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A request at one node, on the orchestrator's clock. It waits for the node's downlink from `queued_ns` (all of it
    was here), was on the node at `delivered_ns`, was begun at `began_ns` and decided at `done_ns`; at a leaf the first
    two are its arrival. Bytes are frames that brought it and that took it on."""

    node: str
    queued_ns: int
    delivered_ns: int
    began_ns: int
    done_ns: int
    down_bytes: int = 0
    up_bytes: int = 0


class Served(msgspec.Struct, frozen=True, gc=False, tag="served"):
    """A request was answered. It arrived at `hops[0].queued_ns` and was answered at `hops[-1].done_ns`."""

    at_ns: int  # the answer was here
    request: int
    exit: int
    right: bool
    hops: tuple[Hop, ...]


class RequestsLost(msgspec.Struct, frozen=True, tag="requests_lost"):
    """Requests that will not be answered, because of what happened to `node`."""

    at_ns: int
    node: str
    requests: tuple[int, ...]
    why: str
