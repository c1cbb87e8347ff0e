"""What is known of one device of a fleet, and what is told about it."""

from __future__ import annotations

import asyncio

import msgspec

from edgebed.link.allowance import Allowance
from edgebed.wire.messages import Configure, Presence, Status
from edgebed.wire.reading import BoardReading
from orchestrator.fleet.control.pinning import Pin

RECORD_BYTES_S, RECORD_BYTES = 64 << 10, 8 << 20
"""Bytes of records that the heartbeats of a device may make: per second in the long run, and at once. A busy agent
makes some 20 KB a second."""

JOINS_MINUTE = 12
"""Times that a device may come back in a minute."""


class Member:
    """What is known of one device."""

    def __init__(self, name: str, pinned: bool) -> None:
        self.name = name
        self.pin = Pin(pinned)
        self.online = False
        self.presence: Presence | None = None
        self.status: Status | None = None
        self.reading: BoardReading | None = None  # the last of a board's sensors
        self.phases_upto = 0
        self.offset_ns = 0  # its clock minus ours
        self.configure: Configure | None = None
        self.hopeless = ""  # why it will not join, where that is known
        self.rival: Presence | None = None  # another agent that uses this device's name
        self.rival_beats = 0  # heartbeats of the rival since the last one of this device
        self.records = Allowance(RECORD_BYTES_S, RECORD_BYTES)
        self.overspent = False
        self.joins = Allowance(JOINS_MINUTE / 60, JOINS_MINUTE)
        self.changed = asyncio.Event()  # set at every message; waiters clear it

    @property
    def incarnation(self) -> str:
        return self.pin.incarnation

    def rests_since(self, ns: int) -> bool:
        """Whether it had no task when it sent its last heartbeat, after `ns` of the orchestrator's clock."""
        return self.status is not None and not self.status.task and self.status.sent_ns >= ns + self.offset_ns


class Joined(msgspec.Struct, frozen=True):
    """A device is online. `again`: it was online before. `restarted`: its agent is a new one; earlier work is lost."""

    device: str
    again: bool
    restarted: bool


class Left(msgspec.Struct, frozen=True):
    device: str
    why: str


class Heard(msgspec.Struct, frozen=True):
    """A heartbeat; `moved` when the device's progress counter has grown since the last."""

    device: str
    moved: bool
    task: str
    phase: str


DeviceEvent = Joined | Left | Heard
