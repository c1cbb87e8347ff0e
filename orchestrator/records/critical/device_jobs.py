"""The jobs of one device in a round: its work, its transfers and its waits, from its timeline. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import groupby

from edgebed.device.phases import OWN_WORK
from edgebed.wire.messages import SLOTS
from orchestrator.records import types as t
from orchestrator.records.critical.event_graph import Bound
from orchestrator.records.critical.round_jobs import ACK_BYTES, Jobs, Names
from orchestrator.records.run_index import RoundFacts
from orchestrator.records.timeline.timeline import Segment


class DeviceJobs:
    """Adds the jobs of one device.

    Args:
        segments: of its timeline in this round.
        steps: numbers of the server steps that used its uploads, in the order of the uploads.
    """

    def __init__(
        self, jobs: Jobs, facts: RoundFacts, device: str, segments: Sequence[Segment], steps: Sequence[int]
    ) -> None:
        self._jobs, self._facts, self._device, self._steps = jobs, facts, device, steps
        self._name = Names(device)
        end = facts.done[device].at_ns if device in facts.done else facts.end_ns
        self._segments = [segment for segment in segments if segment.start_ns < end]
        self._uploads = facts.uploads.get(device, [])
        self._made = made(self._segments, [upload.first_ns for upload in self._uploads])
        assignment = facts.started.assignments.get(device)
        self._slots = SLOTS if assignment is None else assignment.upload_slots
        self._hold = assignment is not None and assignment.hold
        self._replies = {reply.batch: reply for reply in facts.replies.get(device, ())}
        self._last: Hashable = self._name("sent")
        self._begun = False
        self._sent = 0  # uploads whose work is done

    def add(self) -> Hashable:
        """Returns the name of the last job of the device before its update."""
        for index, segment in enumerate(self._segments):
            if segment.name == "upload_tail":
                break
            self._segment(index, segment)
        if self._hold:
            for number in range(len(self._uploads)):
                self._upload(number)
        for reply in self._replies.values():  # that ended no wait of the device
            self._reply(reply, reply.at_ns)
        return self._last

    def _segment(self, index: int, segment: Segment) -> None:
        name, at = segment.name, self._name(segment.name, index)
        if name in OWN_WORK:
            self._begin(segment)
            self._follow(at, segment.end_ns, Bound("cpu", self._device))
            for _ in range(self._made.count(index)):
                if not self._hold:
                    self._upload(self._sent)
                self._sent += 1
        elif name == "blocked":
            taken = self._name("taken", self._sent - 1 - self._slots)
            self._jobs.transfer(at, segment.end_ns, self._device, "downlink", ACK_BYTES, self._last, taken)
            self._last = at
        elif name == "reply_wait":
            self._reply_wait(at, segment)
        elif self._begun:
            self._follow(at, segment.end_ns, Bound("lost" if name == "offline" else "unknown", self._device))

    def _follow(self, name: Hashable, end_ns: int, bound: Bound, *more: Hashable) -> None:
        self._jobs.add(name, end_ns, bound, self._last, *more)
        self._last = name

    def _begin(self, first: Segment) -> None:
        """The device has its task when its own work begins."""
        if self._begun:
            return
        self._begun = True
        delivered, sent = self._facts.delivered.get(self._device), self._facts.sent.get(self._device)
        size = (delivered.bytes if delivered is not None else 0) or (sent.bytes if sent is not None else 0)
        name = self._name("download")
        self._jobs.transfer(name, first.start_ns, self._device, "downlink", size, self._last)
        self._last = name

    def _upload(self, number: int) -> None:
        upload = self._uploads[number]
        before = (self._last, self._name("up", number - 1))
        self._jobs.transfer(self._name("up", number), upload.at_ns, self._device, "uplink", upload.bytes, *before)

    def _reply_wait(self, name: Hashable, segment: Segment) -> None:
        reply = self._replies.pop(self._sent - 1, None)
        if reply is None:
            self._follow(name, segment.end_ns, Bound("unknown", self._device))
            return
        self._follow(name, segment.end_ns, Bound("downlink", self._device), self._reply(reply, segment.end_ns))

    def _reply(self, reply: t.ReplyDelivered, end_ns: int) -> Hashable:
        """A reply is encoded, then on the link until the device goes on."""
        name, encoded = self._name("reply", reply.batch), self._name("reply encoded", reply.batch)
        known = reply.batch < len(self._steps)
        before = ("step", self._steps[reply.batch]) if known else self._name("taken", reply.batch)
        self._jobs.add(encoded, min(reply.first_ns, end_ns), Bound("host"), before)
        self._jobs.transfer(name, end_ns, self._device, "downlink", reply.bytes, encoded)
        return name


def made(segments: Sequence[Segment], firsts: Sequence[int]) -> list[int]:
    """For each upload the index of the segment at whose end it was ready.

    An upload is ready at the end of an `encode`; of simulated devices that need no time for it, at the end of a
    `compute`. Where their number does not fit: at the end of the last work before its first chunk came.
    """
    encodes = _ends(segments, "encode") or _ends(segments, "compute")
    if len(firsts) <= len(encodes) <= len(firsts) + 1:
        return encodes[: len(firsts)]
    work = [index for index, segment in enumerate(segments) if segment.name in OWN_WORK]
    found: list[int] = []
    for first in firsts:
        before = [index for index in work if segments[index].end_ns <= first] or work[:1]
        found += before[-1:]
    return found if len(found) == len(firsts) else []


def _ends(segments: Sequence[Segment], name: str) -> list[int]:
    """Indices of the last segments of that name in a row; `compute` segments in a row are separate batches."""
    rows = [list(row) for _, row in groupby(enumerate(segments), key=lambda pair: pair[1].name)]
    named = [row for row in rows if row[0][1].name == name]
    return [row[-1][0] for row in named] if name == "encode" else [index for row in named for index, _ in row]
