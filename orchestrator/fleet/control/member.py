"""What is known of one device of a fleet, and what is told about it."""

from __future__ import annotations

import asyncio

import msgspec

from edgebed.wire.messages import Configure, Presence, Status
from edgebed.wire.reading import BoardReading
from orchestrator.fleet.control.pinning import Pin


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
