"""Records -> a name for every second of every device in every round, checked against the wall clock. Pure.

An agent reports phases that follow one another without gap, on its own monotonic clock. The measured offsets put them
on the orchestrator's clock; their *lengths* stay those of the device's clock. `waiting` is then renamed by what the
orchestrator did or waited for. Time without a report is `unreported`.

The *residual* of a device in a round is |window - sum of lengths| + overlap + disorder, as a share of the window; the
window is the round on the orchestrator's clock, from its start to the start of the next. It grows with a phase report
that is lost or doubled, with clocks that run at different speeds, and with an offset that puts an effect before its
cause. Where rounds of several lanes overlap, only devices of a round's lane have a window in it, and it lasts until the
next round of that lane: no device has two windows at once.

    download, decode, compute, encode, blocked, reply_wait, upload_tail    as reported (blocked: upload queue full)
    request_wait         as reported: it served, and no request was there
    download             also from the moment its task was handed to the link until its first chunk was there
    dispatch             the task had not been handed to the link
    server_wait          its update was here, its own server half had not finished
    wait_for_others      the round waited for others; the detail names the last
    plan, merge, evaluation, checkpoint, orchestrator    what the orchestrator did (`orchestrator`: without a name)
    idle                 not drawn in this round
    left_out             its work was left out, others went on
    offline              away, from its last report until it joined again
    unreported           a gap between its reports; never part of the sum
"""

from __future__ import annotations

from collections.abc import Container, Iterator

import msgspec

from edgebed.device.phases import OWN_WORK
from orchestrator.records.run_index import FOREVER, RoundFacts, RunFacts
from orchestrator.records.timeline.clock_alignment import Placed, place

OF_A_TASK = ("download", "decode", "compute", "encode", "blocked", "reply_wait", "upload_tail", "server_wait")
"""Names in which the device works on its task or uses its link for it; a task lasts from the first to the last."""

WAITING = (
    "dispatch",
    "request_wait",
    "server_wait",
    "wait_for_others",
    "plan",
    "merge",
    "evaluation",
    "checkpoint",
    "orchestrator",
    "left_out",
    "idle",
)
"""Names in which the device has nothing to do: its idle time."""


class Segment(msgspec.Struct, frozen=True, gc=False):
    """A named part of a device's time, on the orchestrator's clock."""

    name: str
    start_ns: int
    end_ns: int
    detail: str = ""


class DeviceTimeline(msgspec.Struct, frozen=True):
    """One device in one round. Segments follow one another from the window's start to its end."""

    segments: tuple[Segment, ...]
    sums: dict[str, int]  # nanoseconds by name, of all segments
    window_ns: int
    named_ns: int  # reported lengths, on the device's clock, and its time offline
    overlap_ns: int  # what was reported more than once
    # by how much placed phases contradict the orchestrator, beyond the offset's uncertainty: a download before the task
    # was sent or after it was delivered, an upload tail that began after the update's first chunk had come or ended
    # before its last had
    disorder_ns: int

    @property
    def residual(self) -> float:
        """Share of the window that the reports do not explain; 0 is perfect."""
        wrong = abs(self.window_ns - self.named_ns) + self.overlap_ns + self.disorder_ns
        return wrong / self.window_ns if self.window_ns else 0.0

    def totals(self, end_ns: int = FOREVER) -> dict[str, int]:
        """Nanoseconds by name until `end_ns` of the orchestrator's clock: all sums less what lies after it, which is
        little."""
        sums = dict(self.sums)
        for segment in reversed(self.segments):
            if segment.end_ns <= end_ns:
                break
            sums[segment.name] -= segment.end_ns - max(segment.start_ns, end_ns)
        return {name: length for name, length in sums.items() if length > 0}


class RoundTimeline(msgspec.Struct, frozen=True):
    """All devices of the fleet in one round; of an asynchronous method: those of the round's lane."""

    facts: RoundFacts
    devices: dict[str, DeviceTimeline]


def timelines(run: RunFacts, only: Container[int] | None = None) -> Iterator[RoundTimeline]:
    """The rounds that count, in order; linear in the number of records. `only`: numbers of the rounds wanted."""
    current, accounts = None, dict[str, _Account]()
    for session, facts in run.rounds():
        if session is not current:
            current = session
            accounts = {name: _Account(name, place(d)) for name, d in session.devices.items()}
        if only is not None and facts.number not in only:
            continue
        barrier = _barrier(facts)
        ends = {name: end for name in accounts if (end := facts.window_end(name)) is not None}
        yield RoundTimeline(facts, {name: accounts[name].cut(facts, end, barrier) for name, end in ends.items()})


def _barrier(facts: RoundFacts) -> tuple[int, str]:
    """When the round had nobody left to wait for, and who was the last."""
    ends = {device: _own_end(facts, device) for device in facts.started.devices}
    last = max(ends, key=lambda device: ends[device], default="")
    return ends.get(last, facts.start_ns), last


def _own_end(facts: RoundFacts, device: str) -> int:
    end = facts.done.get(device) or facts.out.get(device)
    return FOREVER if end is None else end.at_ns


class _Account:
    """The phases of one device in a session; rounds are cut from them in the order of time."""

    def __init__(self, name: str, placed: Placed) -> None:
        self._name, self._placed = name, placed
        self._next = 0

    def cut(self, facts: RoundFacts, end: int, barrier: tuple[int, str]) -> DeviceTimeline:
        pieces, start = self._placed.pieces, facts.start_ns
        naming = _Naming(self._name, facts, end, barrier, self._placed)
        covered, named, overlap = start, 0, 0
        while self._next < len(pieces) and pieces[self._next].end_ns <= start:
            self._next += 1
        for index in range(self._next, len(pieces)):
            piece = pieces[index]
            if piece.start_ns >= end:
                break
            a = piece.start_ns if piece.start_ns > start else start  # as below: max() and min() would be half the time
            b = piece.end_ns if piece.end_ns < end else end
            if b <= a:
                continue
            named += piece.share(a, b)
            if a > covered:
                named += naming.gap(covered, a)
            elif a < covered:
                overlap += min(b, covered) - a
                a = covered
            if b > covered:
                naming.add(piece.name, a, b)
                covered = b
        named += naming.gap(covered, end)
        segments = tuple([Segment(*part) for part in naming.parts])
        return DeviceTimeline(segments, naming.sums, end - start, named, overlap, self._disorder(facts))

    def _disorder(self, facts: RoundFacts) -> int:
        """Nanoseconds by which effects come before causes. Only a wrong offset, or drift, can do that."""
        pairs: list[tuple[int | None, int | None]] = []  # (cause, effect)
        sent, delivered = facts.sent.get(self._name), facts.delivered.get(self._name)
        update = facts.updates.get(self._name)
        if sent is not None and (span := self._placed.tasks.get(sent.task)) is not None:
            pairs += [(sent.at_ns, span.download_ns), (span.download_ns, delivered.at_ns if delivered else None)]
        if update is not None and (span := self._placed.tasks.get(update.task)) is not None:
            pairs += [(span.tail_ns, update.first_ns), (update.at_ns, span.tail_end_ns)]
        slack = self._placed.uncertainty_ns
        return sum(max(0, a - b - slack) for a, b in pairs if a is not None and b is not None)


class _Naming:
    """Names for one device in one round; `parts` are (name, start, end, detail) in the order of time, `sums` their
    nanoseconds by name."""

    def __init__(self, device: str, facts: RoundFacts, end: int, barrier: tuple[int, str], placed: Placed) -> None:
        self.parts: list[tuple[str, int, int, str]] = []
        self.sums: dict[str, int] = {}
        self._drawn = device in facts.started.devices
        self._out = device in facts.out and device not in facts.done
        self._own = [(phase.start_ns, phase.end_ns, phase.name) for phase in facts.own]
        self._away = [(a, b) for a, b in placed.away if a < end and b > facts.start_ns]
        self._end = _own_end(facts, device)
        self._barrier, self._last = barrier
        sent = facts.sent.get(device)
        self._sent = FOREVER if sent is None else sent.at_ns
        span = placed.tasks.get(sent.task) if sent is not None else None
        delivered = facts.delivered.get(device)  # where no download is reported, as by simulated devices
        known = delivered.at_ns if delivered is not None else FOREVER
        self._begin = known if span is None or span.download_ns is None else span.download_ns
        self._edges = sorted(
            {t for a, b, _ in self._own for t in (a, b)}
            | {t for interval in self._away for t in interval}
            | {self._sent, self._begin, self._end, self._barrier}
        )

    def add(self, name: str, start: int, end: int) -> None:
        """A reported phase; `waiting` falls into the parts that the orchestrator knows of."""
        if name != "waiting":
            self._put(name, start, end, "")
            return
        for a, b in self._split(start, end):
            label, detail = self._wait(a)
            self._put(label, a, b, detail)

    def gap(self, start: int, end: int) -> int:
        """Nothing was reported; returns the nanoseconds that are explained, because the device was away."""
        explained = 0
        for a, b in self._split(start, end):
            away = self._is_away(a)
            explained += b - a if away else 0
            self._put("offline" if away else "unreported", a, b, "")
        return explained

    def _split(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        for edge in self._edges:
            if start < edge < end:
                yield start, edge
                start = edge
        if start < end:
            yield start, end

    def _wait(self, at: int) -> tuple[str, str]:
        if self._is_away(at):
            return "offline", ""
        if not self._drawn:
            return "idle", ""
        for start, end, name in self._own:
            if start <= at < end:
                return name, ""
        if at >= self._barrier:
            return "orchestrator", ""
        if at >= self._end:
            return ("left_out", "") if self._out else ("wait_for_others", self._last)
        if at < self._begin:
            return ("dispatch" if at < self._sent else "download"), ""
        return "server_wait", ""

    def _is_away(self, at: int) -> bool:
        return any(start <= at < end for start, end in self._away)

    def _put(self, name: str, start: int, end: int, detail: str) -> None:
        if end <= start:
            return
        self.sums[name] = self.sums.get(name, 0) + end - start
        same = self.parts and self.parts[-1][0] == name and self.parts[-1][3] == detail
        if same and name not in OWN_WORK:  # those stay apart: an upload is ready at the end of one (`whatif`)
            start = self.parts.pop()[1]
        self.parts.append((name, start, end, detail))
