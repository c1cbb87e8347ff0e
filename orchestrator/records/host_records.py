"""Records of what was done on hosts: by the host and the nodes of a Swarm in a round, by the server for it, for served
requests (early exits), and what the sensors of boards read. Pure."""

from __future__ import annotations

import msgspec

from edgebed.wire.reading import BoardReading


class NodeRound(msgspec.Struct, frozen=True):
    """What a node of a Swarm did in a round, between the last times that its helper told before the round's start and
    before its end; it tells about once a second. Seconds are CPU seconds of all its cores together."""

    name: str
    cores: float  # of the machine
    wall_s: float
    busy_s: float  # of all programs
    stolen_s: float  # given to others by the hypervisor
    ours_s: float  # at most: the quotas of all devices of the machine, and its helpers
    load: float  # mean of the last minute, as its kernel tells
    here: bool = False  # it is the host of the orchestrator, on which `HostRound` judges
    clock_s: float | None = None  # its clock (UTC) minus that of the orchestrator's host; None: not measured
    clock_error_s: float | None = None  # of that: half a round trip
    drift_s: float | None = None  # moved by its steady clock against the orchestrator's since the fleet started


class HostRound(msgspec.Struct, frozen=True, tag="host_round"):
    """What the host did from the start of a round to its end. Seconds are CPU seconds of all cores together."""

    at_ns: int
    start_ns: int
    round: int
    cores: float  # that this process and its children may use
    busy_s: float  # of all programs
    stolen_s: float  # given to others by the hypervisor; 0 where it does not tell
    devices_s: float | None = None  # of all Edgebed devices on this host (those of a Swarm: at most); None: not known
    load_s: dict[str, float] = {}  # by process of the run: orchestrator, its event loop, broker, …
    loop_ms: float | None = None  # CPU time of one reference loop, median; None: none ran in this round
    loops: int = 0  # reference loops in this round
    nodes: tuple[NodeRound, ...] = ()  # of a fleet on a Swarm


class BoardReadings(msgspec.Struct, frozen=True, gc=False, tag="board_readings"):
    """What the sensors of a board read since its last heartbeat, on the device's clock."""

    at_ns: int
    device: str
    incarnation: str
    readings: tuple[BoardReading, ...]


class Spent(msgspec.Struct, frozen=True, gc=False):
    """What a paced server spent on a piece of its work: CPU seconds of this host, the samples that it trained on, CPU
    seconds on the reference to which it is held, by the origin of their costs ({}: to none), and by how many seconds
    the piece ended late."""

    cpu_s: float
    samples: int = 0
    reference_s: dict[str, float] = {}
    late_s: float = 0.0


class ServerStep(msgspec.Struct, frozen=True, gc=False, tag="server_step"):
    """One step of a server half, with the batch it used. `ready_ns`: the half had all that it needed, so what follows
    is the wait for a slot; 0: an older version wrote it. `spent`: None where the server has no CPUs of its own."""

    start_ns: int
    end_ns: int
    round: int
    devices: tuple[str, ...]
    batch: int
    ready_ns: int = 0
    spent: Spent | None = None


class HalfWork(msgspec.Struct, frozen=True, gc=False, tag="half_work"):
    """What the server did for the halves of these devices beside their steps: `make` all halves of a round, or `read`
    the weights of one that has made its steps, with the wait for a slot."""

    start_ns: int
    end_ns: int
    round: int
    what: str
    devices: tuple[str, ...]
    spent: Spent | None = None  # None: the server has no CPUs of its own


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
