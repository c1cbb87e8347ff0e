"""How long rounds would have taken with a faster link or CPU: the recorded rounds, replayed. Pure.

The recorded round of a device is followed on a second clock. Its own work (decode, compute, encode) takes
`cpu` times as long as it did, the download of its task and every transfer `link` times. A transfer begins when the
device has finished the work before it *and* the transfer before it has ended, so a faster link gains nothing from an
upload that was hidden behind computing. Waits are not scaled but follow from what they wait for: `blocked` ends when
the same share of the same transfer is done, `reply_wait` when the reply has arrived, `upload_tail` when the update is.
A server step starts as long after its upload and the device's step before it as it did. The round ends with its last
device; what follows (merge) takes as long as it took. With factors of 1 the recorded end comes out exactly.

What it cannot know, so that the figures are estimates:
    - the plan stays: a method that adapts (tiers, offloading) would have assigned other work;
    - a transfer is scaled whole, with its latency, since the records do not tell the two apart: a link that is bound by
      latency gains less;
    - the server's queue stays: steps of other devices that were in the way stay in the way;
    - devices that were left out end when they ended;
    - in a run with lanes, seconds are added up over all lanes, which run at the same time: the sum is more than the
      wall clock would lose.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from operator import attrgetter

import msgspec

from edgebed.device.phases import OWN_WORK
from orchestrator.records.limits_in_force import Limits
from orchestrator.records.run_index import RoundFacts, RunFacts, Session
from orchestrator.records.timeline import RoundTimeline, Segment
from orchestrator.records.types import ServerStep

MAKING = ("compute", "encode")
"""Work that ends with something to upload."""


class Factors(msgspec.Struct, frozen=True):
    """Factors of lengths: 0.5 is twice as fast."""

    link: float = 1.0
    cpu: float = 1.0


LINK, CPU = Factors(link=0.5), Factors(cpu=0.5)


class _Uplink:
    """Transfers of one device, one after the other, on both clocks."""

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._starts: list[int] = []
        self._rows: list[tuple[int, int, float, float]] = []  # start, end; the same replayed

    def carry(self, ready: int, new_ready: float, end: int) -> float:
        """The next transfer, ready at `ready` and done at `end`; returns when it is done in the replay."""
        start, new_start = ready, new_ready
        if self._rows:
            start, new_start = max(start, self._rows[-1][1]), max(new_start, self._rows[-1][3])
        start = min(start, end)
        new_end = new_start + self._factor * (end - start)
        self._starts.append(start)
        self._rows.append((start, end, new_start, new_end))
        return new_end

    def map(self, at: int) -> float | None:
        """The moment of the replay at which the link is where it was at `at`; None before its first transfer."""
        index = bisect_right(self._starts, at) - 1
        if index < 0:
            return None
        start, end, new_start, new_end = self._rows[index]
        return new_start + self._factor * (at - start) if at <= end else new_end + at - end


Steps = dict[str, list[ServerStep]]
"""Server steps of one round by device, in the order of their starts."""


def steps_of(facts: RoundFacts) -> Steps:
    steps: Steps = {}
    for step in sorted(facts.steps, key=attrgetter("start_ns")):
        for device in step.devices:
            steps.setdefault(device, []).append(step)
    return steps


def replayed_end(timeline: RoundTimeline, device: str, factors: Factors, steps: Steps | None = None) -> int:
    """When the device's contribution would have been complete, on the orchestrator's clock, in ns.

    Args:
        steps: the round's, where the caller has them already.

    Raises:
        KeyError: the device did not finish the round.
    """
    own = (steps_of(timeline.facts) if steps is None else steps).get(device, [])
    return round(_Replay(timeline.facts, device, factors, own).run(timeline.devices[device].segments))


class _Replay:
    def __init__(self, facts: RoundFacts, device: str, factors: Factors, steps: list[ServerStep]) -> None:
        self._facts, self._factors, self._steps = facts, factors, steps
        self._done = facts.done[device].at_ns
        update = facts.updates.get(device)
        uploads = sorted(facts.uploads.get(device, ()), key=lambda upload: upload.first_ns)
        self._transfers = [(upload.first_ns, upload.at_ns, upload.batch) for upload in uploads]
        self._update = update.at_ns if update is not None else None
        if update is not None:
            self._transfers.append((update.first_ns, update.at_ns, -1))
        self._arrived = {batch: at for _, at, batch in self._transfers}
        self._new_arrived: dict[int, float] = {}
        self._replies = sorted(facts.replies.get(device, ()), key=lambda reply: reply.at_ns)
        self._uplink = _Uplink(factors.link)

    def run(self, segments: Iterable[Segment]) -> float:
        walked = _split([s for s in segments if s.start_ns < self._done], [first for first, _, _ in self._transfers])
        ready = _ready([s.end_ns if s.name in OWN_WORK else None for s in walked], [f for f, _, _ in self._transfers])
        now = float(walked[0].start_ns if walked else self._facts.start_ns)
        following = 0
        for index, segment in enumerate(walked):
            now = self._pass(segment, now)
            while following < len(ready) and ready[following] <= index:
                _, end, batch = self._transfers[following]
                self._new_arrived[batch] = self._uplink.carry(min(segment.end_ns, end), now, end)
                following += 1
        return self._end(now, walked[-1].end_ns if walked else self._done)

    def _pass(self, segment: Segment, now: float) -> float:
        """The end of a segment that begins at `now`."""
        length, name = segment.end_ns - segment.start_ns, segment.name
        if name in OWN_WORK:
            return now + length * self._factors.cpu
        if name == "download":
            return now + length * self._factors.link
        if name in ("blocked", "upload_tail"):
            mapped = self._uplink.map(segment.end_ns)
            return now + length * self._factors.link if mapped is None else max(now, mapped)
        if name == "reply_wait":
            return max(now, self._reply(segment.end_ns, now + length))
        return now + length

    def _reply(self, end: int, otherwise: float) -> float:
        """When the reply that ended a wait would have been there."""
        reply = min(self._replies, key=lambda r: abs(r.at_ns - end), default=None)
        if reply is None or reply.batch not in self._new_arrived:
            return otherwise
        server = max(0, reply.first_ns - self._arrived[reply.batch])
        first = max(reply.first_ns, self._arrived[reply.batch])
        return self._new_arrived[reply.batch] + server + (reply.at_ns - first) * self._factors.link + end - reply.at_ns

    def _end(self, now: float, walked: int) -> float:
        """The contribution is complete once the update and every server step are."""
        before, new = self._served()
        if self._update is not None and -1 in self._new_arrived:
            before, new = max(before, self._update), max(new, self._new_arrived[-1])
        if before == 0:
            return now + max(0, self._done - walked)
        return new + self._done - before

    def _served(self) -> tuple[int, float]:
        """End of the device's last server step, recorded and replayed; 0 where there was none."""
        last, new_last = 0, 0.0
        for step in self._steps:
            if step.end_ns > self._done:
                continue
            base = max(last, self._arrived.get(step.batch, 0)) or step.start_ns
            new_base = max(new_last, self._new_arrived.get(step.batch, 0.0)) or float(base)
            last = step.end_ns
            new_last = new_base + max(0, step.start_ns - base) + step.end_ns - max(step.start_ns, base)
        return last, new_last


def _split(segments: list[Segment], firsts: list[int]) -> list[Segment]:
    """Segments of a device. A segment of work is cut where a transfer begins inside it, if no work before it can have
    made what the transfer carries: the part up to there made it."""
    found: list[Segment] = []
    made = False
    for segment in segments:
        if segment.name in MAKING and not made:
            low, high = bisect_right(firsts, segment.start_ns), bisect_left(firsts, segment.end_ns)
            for at in dict.fromkeys(firsts[low:high]):
                found.append(Segment(segment.name, segment.start_ns, at, segment.detail))
                segment = Segment(segment.name, at, segment.end_ns, segment.detail)
            made = True
        found.append(segment)
    return found


def _ready(work_ends: list[int | None], firsts: list[int]) -> list[int]:
    """For each transfer the index of the segment after which it can begin: the last own work before its first chunk."""
    ends = [(end, index) for index, end in enumerate(work_ends) if end is not None]
    found, least = [], 0
    for first in firsts:
        at = bisect_right(ends, (first, len(work_ends))) - 1
        least = max(least, ends[at][1] if at >= 0 else 0)
        found.append(least)
    return found


# ---- a run ----


class Saving(msgspec.Struct, frozen=True):
    """Seconds that all rounds together would have been shorter, divided by the dilation."""

    what: str  # link or cpu
    whose: str  # a device, "slowest" or "all"
    saved_s: float


class WhatIf:
    """Adds up the savings of a run, round by round.

    With one faster device a round is shorter only if that device was its last, so only the last one is replayed; with
    several faster devices, all that could still be the last.
    """

    def __init__(self, run: RunFacts) -> None:
        self._sessions: dict[int, Session] = {id(facts): session for session, facts in run.rounds()}
        self._limits: dict[int, Limits] = {id(session): Limits(session) for session in run.sessions}
        self._steps: Steps = {}
        self._saved: dict[tuple[str, str], float] = {}
        self.slowest: dict[str, int] = {}
        """In how many rounds whose link was the slowest, or one of the slowest."""
        self.total_s = 0.0

    def add(self, timeline: RoundTimeline) -> None:
        facts = timeline.facts
        if facts.finished is None or not facts.done:
            return
        self.total_s += facts.finished.seconds / facts.dilation
        ends = {device: done.at_ns for device, done in facts.done.items() if device in timeline.devices}
        last = max(ends, key=lambda device: ends[device], default=None)
        if last is None or facts.finished.why not in ("all done", "enough"):
            return
        slowest = self._slowest(facts, ends)
        for device in slowest:
            self.slowest[device] = self.slowest.get(device, 0) + 1
        self._steps = steps_of(facts)
        every = frozenset(ends)
        groups = {"link": {last: {last}, "all": every, "slowest": slowest}, "cpu": {last: {last}, "all": every}}
        for what, factors in (("link", LINK), ("cpu", CPU)):
            known: dict[frozenset[str], int] = {}
            for whose, faster in groups[what].items():
                if (group := frozenset(faster)) not in known:
                    known[group] = self._saving(timeline, ends, group, factors)
                self._add(what, whose, facts, known[group])

    def _slowest(self, facts: RoundFacts, ends: dict[str, int]) -> set[str]:
        limits = self._limits[id(self._sessions[id(facts)])]
        rates = {d: row.link_bit_s for d in ends if (row := limits.at(d, facts.start_ns)) is not None}
        least = min(rates.values(), default=0.0)
        return {device for device, rate in rates.items() if rate == least}

    def _saving(self, timeline: RoundTimeline, ends: dict[str, int], faster: frozenset[str], factors: Factors) -> int:
        """Nanoseconds by which the last device of the round would have finished earlier."""
        facts, latest = timeline.facts, 0
        out = max((row.at_ns for device, row in facts.out.items() if device not in facts.done), default=0)
        recorded = max(out, *ends.values())
        for device in sorted(ends, key=lambda device: -ends[device]):
            if ends[device] <= latest:
                break  # it and all that follow were done before, and are never later than they were
            latest = max(
                latest, replayed_end(timeline, device, factors, self._steps) if device in faster else ends[device]
            )
        return max(0, recorded - max(latest, out if facts.finished and facts.finished.why == "all done" else 0))

    def _add(self, what: str, whose: str, facts: RoundFacts, saved_ns: int) -> None:
        key = what, whose
        self._saved[key] = self._saved.get(key, 0.0) + saved_ns / 1e9 / facts.dilation

    def savings(self) -> list[Saving]:
        """The largest first; devices that were never the last of a round save nothing and are not named."""
        found = [Saving(what, whose, saved) for (what, whose), saved in self._saved.items()]
        return sorted(found, key=lambda saving: -saving.saved_s)

    def result(self) -> dict[str, object]:
        """For summary.json."""
        return {
            "rounds_s": self.total_s,
            "slowest_links": sorted(self.slowest, key=lambda device: (-self.slowest[device], device)),
            "savings": [msgspec.structs.asdict(saving) for saving in self.savings()],
        }

    def saved_s(self, what: str, whose: str) -> float:
        """0 where the device was never the last of a round."""
        return self._saved.get((what, whose), 0.0)
