"""Which agent is a device: the pinned incarnation. Pure.

Every start of an agent has a new random incarnation. The fleet pins the one that joined. It is released when the fleet
starts another agent for the device; of a device whose agents the fleet does not start (a board), also when the agent
has left. An incarnation that was released never returns, so an old Presence that is sent again changes nothing.
"""

from __future__ import annotations

import enum
from collections import deque

PAST = 256
"""Incarnations that are remembered. Each was pinned, or refused by name."""

NAMED = 16
"""Refusals of one device that are named, so that a device that invents incarnations does not fill the records."""


class Verdict(enum.Enum):
    """About an agent that says it is the device."""

    OWN = "it is the device"
    NEW = "it becomes the device"
    RIVAL = "another agent is the device, and may be silent"
    PAST = "an agent that has ended, or was replaced or refused"
    FOREIGN = "another agent is the device, and the fleet has started no second one"


class Pin:
    """Which agent is one device.

    Args:
        strict: the fleet starts the agents of this device.

    Attributes:
        incarnation: the agent that is the device, or was until it was released; "" before the first has joined.
    """

    def __init__(self, strict: bool) -> None:
        self.strict, self.incarnation = strict, ""
        self._held = False
        self._past: deque[str] = deque(maxlen=PAST)
        self._named: set[str] = set()

    def holds(self, incarnation: str) -> bool:
        """Whether this agent is the device now."""
        return self._held and incarnation == self.incarnation

    def is_past(self, incarnation: str) -> bool:
        return incarnation in self._past

    def verdict(self, incarnation: str, *, online: bool) -> Verdict:
        """What an agent of this incarnation is to the device. `online`: whether the device is connected."""
        if self.is_past(incarnation):
            return Verdict.PAST
        if self.holds(incarnation):
            return Verdict.OWN
        if not self._held or not (online or self.strict):
            return Verdict.NEW
        return Verdict.FOREIGN if self.strict else Verdict.RIVAL

    def take(self, incarnation: str) -> None:
        """This agent is the device from now on."""
        if not self.holds(incarnation):
            self.release()
        self.incarnation, self._held = incarnation, True

    def release(self) -> None:
        """The pinned agent has ended, or is to be replaced: the next one may join."""
        if self._held:
            self._past.append(self.incarnation)
        self._held = False

    def refuse(self, incarnation: str) -> bool:
        """This agent never becomes the device. Returns whether to name it: once, and not without end."""
        if not self.is_past(incarnation):
            self._past.append(incarnation)
        if incarnation in self._named or len(self._named) >= NAMED:
            return False
        self._named.add(incarnation)
        return True
