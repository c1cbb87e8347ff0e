"""The index of a run: its records by session, round and device. Pure.

`RunFacts.add` takes records one by one. It is the only code that tells record kinds apart to find out what they say
about sessions, rounds, devices and clocks. `sort` indexes a whole file. `orchestrator.records.live.reducer` indexes a
run that goes on, and drops the facts of rounds that are settled.

A *session* lasts from the start or a resume of a run to its end. Each has a monotonic clock of its own, so times of two
sessions are never subtracted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

import msgspec

from edgebed.errors import UsageError
from edgebed.wire.piece_times import Phase
from edgebed.wire.reading import BoardReading
from orchestrator.records import types as t
from orchestrator.records.board_marks import SETTINGS, BoardMark, Slowed, extend, marks_of
from orchestrator.records.host_records import BoardReadings, HalfWork, HostRound, ServerStep

FOREVER = 1 << 62
"""A time that never comes, in nanoseconds."""


class Clock(msgspec.Struct):
    """Offsets that were measured for one incarnation of an agent, in the order of time: (device ns, offset ns)."""

    knots: list[tuple[int, int]] = []
    uncertainty_ns: int = 0

    def add(self, at_ns: int, offset_ns: int, uncertainty_ns: int) -> None:
        self.knots.append((at_ns + offset_ns, offset_ns))
        self.uncertainty_ns = max(self.uncertainty_ns, uncertainty_ns)

    def to_orchestrator(self, device_ns: int) -> int:
        """The orchestrator's time: linear between two measurements; before and after all, the nearest offset holds."""
        knots = self.knots
        i = bisect_right(knots, (device_ns, FOREVER)) if len(knots) > 1 else 0
        if i == 0 or i == len(knots):
            return device_ns - knots[max(0, i - 1)][1]
        (t0, o0), (t1, o1) = knots[i - 1], knots[i]
        return device_ns - o0 - (o1 - o0) * (device_ns - t0) // (t1 - t0)


class DeviceFacts(msgspec.Struct):
    """What is known of one device in one session."""

    name: str
    phases: list[tuple[str, Phase]] = []  # (incarnation, phase) as reported
    readings: list[tuple[str, BoardReading]] = []  # (incarnation, reading) of a board's sensors
    slowed: list[Slowed] = []  # from when to when a mark held for a board, on the orchestrator's clock
    host: dict[str, str] = {}  # what it said when it joined last
    clocks: dict[str, Clock] = {}  # by incarnation
    presence: list[tuple[int, str]] = []  # (ns, incarnation when it joined, "" when it left)
    placed: tuple[tuple[int, ...], object] | None = None  # kept by `clock_alignment.place`, with what it was made from

    @property
    def reported_ns(self) -> int:
        """End of the last phase that it reported, on the orchestrator's clock; 0 where that is not known."""
        if not self.phases:
            return 0
        incarnation, phase = self.phases[-1]
        clock = self.clocks.get(incarnation)
        return 0 if clock is None else clock.to_orchestrator(phase.end_ns)

    @property
    def present(self) -> bool:
        """Whether it has joined and not left since."""
        return bool(self.presence and self.presence[-1][1])

    @property
    def incarnation(self) -> str:
        """The one that joined last."""
        return next((joined for _, joined in reversed(self.presence) if joined), "")


class RoundFacts(msgspec.Struct):
    """What is known of one round."""

    started: t.RoundStarted
    dilation: float  # of its session; times are divided by it when they are shown
    # start of the next round of its lane, or the end of the run. In an interleaved run: the end of its turn
    end_ns: int = 0
    cut_off: bool = False  # the orchestrator was killed before that; the last reports of the devices are missing too
    # in a session with lanes, the devices of this lane with the end of their windows; None: all have the same
    ends: dict[str, int] | None = None
    finished: t.RoundFinished | None = None
    evaluated: t.Evaluated | None = None
    turn: t.TurnEnded | None = None
    sent: dict[str, t.TaskSent] = {}
    delivered: dict[str, t.TaskDelivered] = {}
    uploads: dict[str, list[t.UploadReceived]] = {}
    replies: dict[str, list[t.ReplyDelivered]] = {}
    steps: list[ServerStep] = []
    half_work: list[HalfWork] = []
    updates: dict[str, t.UpdateReceived] = {}
    done: dict[str, t.DeviceDone] = {}
    out: dict[str, t.DeviceOut] = {}
    own: list[t.OrchestratorPhase] = []
    host: HostRound | None = None
    offset: int = 0  # where its first record begins in the file, in bytes; 0 where that is not known

    @property
    def number(self) -> int:
        return self.started.round

    @property
    def start_ns(self) -> int:
        return self.started.at_ns

    @property
    def lane(self) -> str:
        return self.started.lane

    @property
    def named(self) -> dict[str, None]:
        """All devices that it drew, or that its records name."""
        by_device = self.sent, self.delivered, self.uploads, self.replies, self.updates, self.done
        return dict.fromkeys((*self.started.devices, *(name for each in by_device for name in each)))

    def window_end(self, device: str) -> int | None:
        """End of the device's window in this round; None where the device belongs to another lane."""
        return self.end_ns if self.ends is None else self.ends.get(device)

    def download_bytes(self, device: str) -> int:
        """Bytes of the device's task, once delivered: of its frames, or of its body where frames were not counted."""
        sent, delivered = self.sent.get(device), self.delivered.get(device)
        if delivered is None:
            return 0
        return delivered.bytes or (sent.bytes if sent is not None else 0)

    def moved(self, device: str) -> tuple[int, int]:
        """Bytes from a device, and to it."""
        update = self.updates.get(device)
        up = sum([upload.bytes for upload in self.uploads.get(device, ())]) + (update.bytes if update else 0)
        down = sum([reply.bytes for reply in self.replies.get(device, ())]) + self.download_bytes(device)
        return up, down


class Session(msgspec.Struct):
    """From the start or a resume of a run to its end. Rounds by number; devices by name, those of the fleet first."""

    started: t.RunStarted
    rounds: dict[int, RoundFacts] = {}
    devices: dict[str, DeviceFacts] = {}
    limits: list[t.LimitsSet] = []
    rates: list[t.ScenarioStep] = []  # those with rates
    calibration: list[t.Calibrated] = []
    cuts: list[t.CutProfiled] = []
    events: list[t.Happened] = []  # what was not planned, in the order of the records
    # numbers of the rounds that records were added to; for readers of a run that goes on, who clear it
    changed: set[int] = set()
    tested: t.FinalTest | None = None
    finished: t.RunFinished | None = None
    end_ns: int = 0

    def device(self, name: str) -> DeviceFacts:
        if name not in self.devices:
            self.devices[name] = DeviceFacts(name)
        return self.devices[name]

    @property
    def begin_ns(self) -> int:
        """When its first round began, or the session where there was none."""
        return min((facts.start_ns for facts in self.rounds.values()), default=self.started.at_ns)


class RunFacts(msgspec.Struct):
    """A run, as far as its records were added."""

    sessions: list[Session] = []

    def add(self, record: t.Record, offset: int = 0) -> None:
        """Add the next record. `offset`: where it begins in the file, in bytes. Windows of rounds are not known before
        `close` was called."""
        kind = type(record)
        if isinstance(record, t.RunStarted):
            self.sessions.append(Session(record))
            for info in record.devices:
                self.sessions[-1].device(info.name)
        elif not self.sessions:
            raise UsageError(
                f"the records begin with {kind.__name__} and not with RunStarted",
                hint="records.jsonl has lost its first lines: take the run again",
            )
        elif kind in _OF_ROUND:
            _add_to_round(self.sessions[-1], record)
        else:
            _add(self.sessions[-1], record, offset)
        session = self.sessions[-1]
        at: int = record.end_ns if kind in _LISTS else record.at_ns  # type: ignore[union-attr]
        if at > session.end_ns:
            session.end_ns = at

    @property
    def started(self) -> t.RunStarted:
        """Of the last session. What sessions may differ in has a property of its own."""
        return self.sessions[-1].started

    @property
    def enforcement(self) -> str:
        """Who held the limits; the weakest, where sessions differ."""
        kinds = [session.started.enforcement for session in self.sessions]
        return next((weak for weak in (t.SIMULATED, "software") if weak in kinds), kinds[-1])

    @property
    def has_lanes(self) -> bool:
        """Whether rounds overlap in time."""
        return any(facts.ends is not None for session in self.sessions for facts in session.rounds.values())

    @property
    def dilation(self) -> float:
        """The largest, where sessions differ."""
        return max(session.started.dilation for session in self.sessions)

    @property
    def calibrated(self) -> bool:
        """Whether every session was."""
        return all(session.started.calibrated for session in self.sessions)

    def rounds(self) -> list[tuple[Session, RoundFacts]]:
        """Rounds that count, by number. Of a round that a resumed run did again, the last one counts."""
        last: dict[int, tuple[Session, RoundFacts]] = {}
        for session in self.sessions:
            first = session.started.resumed_from
            last = {number: pair for number, pair in last.items() if number < first}
            last |= {number: (session, facts) for number, facts in session.rounds.items()}
        return [last[number] for number in sorted(last)]


def sort(records: Iterable[t.Record]) -> RunFacts:
    """The index of all records of one run. Raises UsageError where they do not say how it began."""
    run = RunFacts()
    for record in records:
        run.add(record)
    if not run.sessions:
        raise UsageError("there are no records", hint="the run ended before it began: see its output")
    for session in run.sessions:
        close(session)
    return run


def close(session: Session) -> None:
    """Set the windows of all rounds: each lasts until the next one of its lane starts, or until other methods get the
    fleet. May be called again."""
    rounds = sorted(session.rounds.values(), key=lambda facts: facts.start_ns)
    end = session.finished.at_ns if session.finished is not None else session.end_ns
    following: dict[str, int] = {}
    for facts in reversed(rounds):
        facts.cut_off = facts.lane not in following and session.finished is None and facts.turn is None
        facts.end_ns = max(facts.start_ns, facts.turn.at_ns if facts.turn else following.get(facts.lane, end))
        following[facts.lane] = facts.start_ns
    if set(following) - {""}:
        _divide(rounds)


def _divide(rounds: list[RoundFacts]) -> None:
    """Give every device windows in rounds of one lane at a time: of the lane that drew it last, or draws it first."""
    lane_of: dict[str, str] = {}
    for facts in reversed(rounds):
        lane_of |= dict.fromkeys(facts.started.devices, facts.lane)
    last: dict[str, RoundFacts] = {}
    for facts in rounds:
        lane_of |= dict.fromkeys(facts.started.devices, facts.lane)
        facts.ends = {device: facts.end_ns for device, lane in lane_of.items() if lane == facts.lane}
        for device in facts.ends:
            before = last.get(device)
            if before is not None and before.ends is not None:
                before.ends[device] = min(before.ends[device], facts.start_ns)
            last[device] = facts


_BY_DEVICE: dict[type, str] = {
    t.TaskSent: "sent",
    t.TaskDelivered: "delivered",
    t.UpdateReceived: "updates",
    t.DeviceDone: "done",
    t.DeviceOut: "out",
}
_LISTS_BY_DEVICE: dict[type, str] = {t.UploadReceived: "uploads", t.ReplyDelivered: "replies"}
_LISTS: dict[type, str] = {ServerStep: "steps", HalfWork: "half_work", t.OrchestratorPhase: "own"}
_SINGLE: dict[type, str] = {
    t.RoundFinished: "finished",
    t.Evaluated: "evaluated",
    HostRound: "host",
    t.TurnEnded: "turn",
}
"""Where a round keeps its records, by their kind."""
_OF_ROUND = {*_BY_DEVICE, *_LISTS_BY_DEVICE, *_LISTS, *_SINGLE} - {t.DeviceOut}


def _add(session: Session, record: t.Record, offset: int) -> None:
    match record:
        case t.DevicePhases(_, name, incarnation, phases):
            session.device(name).phases += [(incarnation, phase) for phase in phases]
        case BoardReadings():
            _add_readings(session, record)
        case t.ClockOffset():
            _add_clock(session.device(record.device), record)
        case t.DeviceJoined() | t.DeviceLeft():
            _add_presence(session, record)
        case t.LimitsSet():
            session.limits.append(record)
        case t.Calibrated():
            session.calibration.append(record)
        case t.CutProfiled():
            session.cuts.append(record)
        case t.Fault():
            session.events.append(record)
        case t.ScenarioStep():
            if record.uplink_bit_s is not None:
                session.rates.append(record)
            if record.kind != "rate":
                session.events.append(record)
        case t.FinalTest():
            session.tested = record
        case t.RunFinished():
            session.finished = record
        case t.RoundStarted():
            session.rounds[record.round] = RoundFacts(record, session.started.dilation, offset=offset)
            session.changed.add(record.round)
        case t.DeviceOut():
            session.events.append(record)
            _add_to_round(session, record)
        case _:
            pass  # requests of a serving run: `orchestrator.records.serving_summary` reads them


def _add_readings(session: Session, record: BoardReadings) -> None:
    """Readings, and what they say that slows the board down; before its clock is known, at the time of the record."""
    device = session.device(record.device)
    device.readings += [(record.incarnation, reading) for reading in record.readings]
    clock = device.clocks.get(record.incarnation)
    for reading in record.readings:
        at_ns = record.at_ns if clock is None else clock.to_orchestrator(reading.at_ns)
        begun = extend(device.slowed, marks_of(reading) or (), at_ns)
        session.events += [
            BoardMark(at_ns, record.device, mark, getattr(reading, mark) if mark in SETTINGS else "") for mark in begun
        ]


def _add_clock(device: DeviceFacts, record: t.ClockOffset) -> None:
    """Offsets belong to the incarnation that joined last: a board that rebooted has another clock."""
    clock = device.clocks.setdefault(device.incarnation, Clock())
    clock.add(record.at_ns, record.offset_ns, record.uncertainty_ns)


def _add_presence(session: Session, record: t.DeviceJoined | t.DeviceLeft) -> None:
    """A device joined or left. Records from before the start say how the fleet was: state, but no event of this run."""
    joined = record.incarnation if isinstance(record, t.DeviceJoined) else ""
    session.device(record.device).presence.append((record.at_ns, joined))
    if isinstance(record, t.DeviceJoined) and record.host:
        session.device(record.device).host = record.host
    expected = isinstance(record, t.DeviceJoined) and not record.again
    if not expected and record.at_ns >= session.started.at_ns:
        session.events.append(record)


def _add_to_round(session: Session, record: t.Record) -> None:
    """Keep what belongs to a round that was started; nothing else."""
    number = getattr(record, "round", -1)
    facts = session.rounds.get(number)
    if facts is None:
        return
    session.changed.add(number)
    kind: type = type(record)
    device: str = getattr(record, "device", "")
    if kind in _BY_DEVICE:
        getattr(facts, _BY_DEVICE[kind])[device] = record
    elif kind in _LISTS_BY_DEVICE:
        getattr(facts, _LISTS_BY_DEVICE[kind]).setdefault(device, []).append(record)
    elif kind in _LISTS:
        getattr(facts, _LISTS[kind]).append(record)
    else:
        setattr(facts, _SINGLE[kind], record)
