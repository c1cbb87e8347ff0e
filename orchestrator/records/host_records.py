"""Records of the host and of the nodes of a Swarm in a round, and of what the sensors of boards read. Pure."""

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
