"""How late, or how early, the visible events of a held task were: from arrivals, and from the costs of pieces whose
sizes the orchestrator knows. Nothing that the device says is used. Pure.

Two chains of units go through the task. One begins each unit as early as it can have begun, and nothing may be seen
before its end: a device that is seen earlier did not hold. The other begins it as late as it should have: what is seen
after its end, and after the time that the limits give the transfer, is late, before any later unit makes up for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import cycle, islice

import msgspec

from edgebed.device.pieces import Kinds, seconds
from edgebed.limits.spec import Limits
from edgebed.link.endpoint import CHUNK_BYTES
from edgebed.link.peer import Sent
from edgebed.methods.parts.exchange import batch_worth
from edgebed.pacing import Earned
from edgebed.wire.frames import WIRE_SHARE
from edgebed.wire.messages import Assignment, Cost
from edgebed.wire.order import batch_bounds

LEAST_S = 0.02
"""Seconds that clocks and settings on their way to a device may make of nothing."""

SURELY = 0.9
"""Share of the time that the limits give a first chunk, which it certainly took: it is seen when all of it is there."""

OUT_OF_STEP = 0.01
"""Share of a task by which an event may be early."""


class Arrival(msgspec.Struct, frozen=True):
    """A transfer from the device: first and last chunk, `acked_ns` when its acknowledgement left, bytes on the wire,
    and those of its tensors."""

    first_ns: int
    last_ns: int
    acked_ns: int
    bytes: int
    raw_bytes: int


class TaskSeen(msgspec.Struct, frozen=True):
    """A task as the orchestrator saw it. `body`: bytes of the task's weights; `replies`: by upload."""

    assignment: Assignment
    samples: int
    costs: Mapping[str, Cost]
    sent: Sent
    body: int
    uploads: Sequence[Arrival]
    replies: Mapping[int, Sent]
    update: Arrival


class Lateness(msgspec.Struct, frozen=True):
    """Seconds, at most."""

    late_s: float
    early_s: float


def lateness(seen: TaskSeen, earned: Earned, limits: Limits) -> Lateness | None:
    """None where the orchestrator does not know the pieces: uploads that are not one for each batch, work that no
    recording and no layers tell, costs that vary (`spread`), requests. `earned`: of the device, on the clock of the
    arrivals."""
    assignment, uploads = seen.assignment, seen.uploads
    bounds = batch_bounds(seen.samples, assignment.batch_size, assignment.max_batches)
    count = assignment.steps or assignment.epochs * len(bounds)
    varies = any(cost.spread for cost in seen.costs.values())
    if assignment.arrivals is not None or len(uploads) not in (0, count) or varies:
        return None
    try:
        chain, kinds = _Chain(seen, earned, limits), Kinds()
        for number, (start, stop) in enumerate(islice(cycle(bounds), count)):
            if uploads:
                chain.add(*kinds.uploading([stop - start]))
                chain.upload(number)
            chain.add(*kinds.ended(batch_worth(assignment, number, stop - start)))
        chain.add(*kinds.finished())
        chain.add("update", seen.update.raw_bytes)
    except KeyError:
        return None
    chain.see(seen.update, uploads[-1].acked_ns / 1e9 + limits.latency_ms / 1e3 if uploads else 0.0)
    return Lateness(chain.late_s, chain.early_s)


class _Chain:
    """The unit in hand: the least and the most CPU seconds that the device has earned when it ends."""

    def __init__(self, seen: TaskSeen, earned: Earned, limits: Limits) -> None:
        self._seen, self._earned, self._limits = seen, earned, limits
        self.late_s = self.early_s = self._lost_s = 0.0
        self._least = self._most = earned.given(seen.sent.first_ns / 1e9)
        self.add("receive", seen.sent.bytes)
        self._most = max(self._most, earned.given(seen.sent.done_ns / 1e9))
        decoding = [seconds(seen.costs[kind], seen.body) for kind in ("decode", "build") if kind in seen.costs]
        self._least, self._most = self._least + min(decoding, default=0.0), self._most + max(decoding, default=0.0)

    def add(self, kind: str, size: int) -> None:
        """A piece of the unit. Raises KeyError for one whose cost is not known."""
        cpu_s = seconds(self._seen.costs[kind], size)
        self._least, self._most = self._least + cpu_s, self._most + cpu_s

    def upload(self, number: int) -> None:
        """The unit ends with an upload, and with the use of its reply where there is one."""
        seen, own = self._seen, self._seen.uploads[number]
        self.add("encode", own.raw_bytes)
        slots, latency_s = seen.assignment.upload_slots, self._limits.latency_ms / 1e3
        if not seen.assignment.hold:
            if number >= slots:  # it waited for a place in the queue
                acked_s = seen.uploads[number - slots].acked_ns / 1e9
                self._wait(acked_s, acked_s + latency_s)
            self.see(own, seen.uploads[number - 1].acked_ns / 1e9 + latency_s if number else 0.0)
        self.add("send", own.bytes)
        if (reply := seen.replies.get(number)) is not None:
            self._lost_s = self.late_s
            self._wait(reply.first_ns / 1e9, reply.done_ns / 1e9)
            self.add("receive", reply.bytes)
            self.add("reply", reply.bytes)

    def see(self, arrival: Arrival, free_s: float) -> None:
        """The unit ends with a transfer. The link is free from `free_s` on."""
        chunk_s = SURELY * self._link_s(min(arrival.bytes, CHUNK_BYTES)) + self._limits.latency_ms / 1e3
        early_s = self._earned.at(self._least) - (arrival.first_ns / 1e9 - chunk_s)
        self.early_s = max(self.early_s, early_s if math.isfinite(early_s) else 0.0)  # frozen at the end of the unit
        sending = seconds(self._seen.costs["send"], arrival.bytes) if "send" in self._seen.costs else 0.0
        begun_s = max(self._earned.at(self._most + sending), free_s)
        due_s = begun_s + self._link_s(arrival.bytes) + self._limits.latency_ms / 1e3
        self.late_s = max(self.late_s, self._lost_s + arrival.last_ns / 1e9 - due_s)

    def _link_s(self, size: int) -> float:
        return 8 * size / WIRE_SHARE / self._limits.uplink_bit_s

    def _wait(self, least_s: float, most_s: float) -> None:
        self._least = max(self._least, self._earned.given(least_s))
        self._most = max(self._most, self._earned.given(most_s))
