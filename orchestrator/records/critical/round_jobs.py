"""Names and jobs of a round's graph: what its parts share. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable
from itertools import accumulate

import msgspec

from edgebed.device.phases import OWN_WORK
from orchestrator.records.critical.event_graph import Bound, Parts, Plan, whole
from orchestrator.records.run_index import Session
from orchestrator.records.timeline.clock_alignment import Piece, place
from orchestrator.records.timeline.limits_in_force import InForce, LimitsInForce

HOST, SERVER, TURN, BROKER = Bound("host"), Bound("server"), Bound("turn"), Bound("broker")

HEADERS = 1.06
"""Bytes on a link per byte of a frame: headers of MQTT, TCP, IP and Ethernet, and acknowledgements."""

ACK_BYTES = 200
"""Of the message that tells a device that its upload was taken."""


class SessionFacts:
    """What the graphs of a session's rounds need beside the rounds.

    Attributes:
        slots: server halves that train at once; 0: not known.
        queued: uploads of one device that may wait for its server half.
    """

    def __init__(self, session: Session) -> None:
        self._session, self._limits = session, LimitsInForce(session)
        self._stops: dict[str, Stops] = {}
        self.slots, self.queued = session.started.server_slots, session.started.queued_uploads

    def limits(self, device: str, at_ns: int) -> InForce | None:
        return self._limits.at(device, at_ns)

    def stops(self, device: str) -> Stops:
        if device not in self._stops:
            self._stops[device] = Stops(place(self._session.device(device)).pieces)
        return self._stops[device]


class Stops:
    """For how long a device's quota stopped it, or its agent worked for a transfer, between two moments.

    The kernel counts a stop when it ends, so the figure of a short interval is an estimate.
    """

    def __init__(self, pieces: Iterable[Piece]) -> None:
        rows = [(piece.start_ns, max(1, piece.end_ns - piece.start_ns), _stopped(piece)) for piece in pieces]
        self._rows, self._starts = rows, [start for start, _, _ in rows]
        self._before = [0, *accumulate(stopped for _, _, stopped in rows)]

    def between(self, start_ns: int, end_ns: int) -> int:
        return max(0, self._until(end_ns) - self._until(start_ns))

    def _until(self, at_ns: int) -> int:
        i = bisect_right(self._starts, at_ns) - 1
        if i < 0:
            return 0
        start, length, stopped = self._rows[i]
        return self._before[i] + stopped * min(length, at_ns - start) // length


def _stopped(piece: Piece) -> int:
    """Of a phase in which the device itself computes, only the stops hold up a transfer."""
    used = 0 if piece.name in OWN_WORK else piece.cpu_ns
    return min(piece.end_ns - piece.start_ns, piece.throttled_ns + used)


class Jobs:
    """The jobs of one round while they are collected, by name."""

    def __init__(self, session: SessionFacts, at_ns: int) -> None:
        self.plans: dict[Hashable, Plan] = {}
        self._session, self._at_ns = session, at_ns

    def add(self, name: Hashable, end_ns: int, bound: Bound, *before: Hashable) -> None:
        self.plans[name] = Plan(end_ns, before, whole(bound))

    def transfer(self, name: Hashable, end_ns: int, device: str, what: str, size: int, *before: Hashable) -> None:
        """A transfer of `size` bytes that begins when the last job before it ends."""
        self.plans[name] = Plan(end_ns, before, self._dividing(device, what, size))

    def _dividing(self, device: str, what: str, size: int) -> Callable[[int, int], Parts]:
        """The link first, for as long as the bytes need; then the device's CPU; what is left belongs to the broker."""
        limits, link = self._session.limits(device, self._at_ns), Bound(what, device)
        rate = 0.0 if limits is None else limits.uplink_bit_s if what == "uplink" else limits.downlink_bit_s
        if limits is None or rate <= 0 or not size:
            return whole(link)
        needed = round(size * 8e9 * HEADERS / rate + limits.latency_ms * 1e6)
        stops = self._session.stops(device)

        def divide(start: int, end: int) -> Parts:
            on_link = min(end - start, needed)
            stopped = min(end - start - on_link, stops.between(start, end))
            rest = end - start - on_link - stopped
            return (link, on_link), (Bound("cpu", device), stopped), (BROKER, rest)

        return divide


class Names(msgspec.Struct, frozen=True):
    """Makes the names of one device's jobs."""

    device: str

    def __call__(self, kind: str, number: int = 0) -> tuple[str, str, int]:
        return kind, self.device, number
