"""What is shown of a run while its records come in: the state that `orchestrator.records.live.reducer` keeps. Pure.

The state is small enough to be kept in a file beside the records: a round that is settled is one row; of a device there
is what holds now, and its history as columns (one entry per round). The index holds the rounds that are not settled.
Times `*_ns` are the orchestrator's clock; all others are seconds divided by the dilation. The time axis is that of
`summary.json`: the sum of the rounds, without evaluations and checkpoints; where rounds overlap it is the wall clock.
Rounds are numbered as in the records, from 0; people read numbers from 1.
"""

from __future__ import annotations

import msgspec

from orchestrator.records import types as t
from orchestrator.records.critical.bound_by import RoundBounds
from orchestrator.records.run_index import RunFacts, Session
from orchestrator.records.timeline.utilisation import DeviceLoad

VERSION = 14
"""Of the structs below. A state of another version is made again from the records."""


class RoundRow(msgspec.Struct, array_like=True):
    """One round.

    Attributes:
        offset: where its first record begins in the file, in bytes.
        session: index of its session.
        axis_s: its start on the time axis.
        straggler, gap_s, why, behind_s: as in `orchestrator.records.critical.stragglers`, divided by the dilation.
        loop_ms, loops, disturbed: CPU time of the reference loop, how many ran, and what the host disturbed the round
            by; None: not measured, or not known yet.
        bounds: what bounded it; None: not known, or not yet.
        bytes: both ways, of all devices.
        load: CPU seconds per second, of the whole host and of every process of the run.
        rev: revision of the state when the row last changed.
    """

    number: int
    offset: int
    session: int
    start_ns: int
    axis_s: float
    drawn: int
    seconds: float | None = None
    accuracy: float | None = None
    loss: float | None = None
    merged: int = 0
    left_out: int = 0
    straggler: str = ""
    gap_s: float | None = None
    why: str = ""
    behind_s: tuple[float, ...] = ()
    loop_ms: float | None = None
    loops: int = 0
    disturbed: tuple[str, ...] | None = None
    bounds: RoundBounds | None = None
    bytes: int = 0
    load: dict[str, float] = {}
    rev: int = 0

    @property
    def end_s(self) -> float:
        """Its end on the time axis."""
        return self.axis_s + (self.seconds or 0.0)


class IndexedRound(msgspec.Struct):
    """A round that the index still has.

    Attributes:
        row: index of its RoundRow.
        settled: whether its straggler is known for good; the index has dropped its transfers and steps then.
        moved: bytes up and down by device, of its records that the index has; they are part of the sums of the state.
        updated: devices whose update is part of the sums of the state.
    """

    row: int
    settled: bool = False
    moved: dict[str, tuple[int, int]] = {}
    updated: set[str] = set()


class RecentUse(msgspec.Struct):
    """CPU time, all time, time in which the quota stopped it, and own work, in nanoseconds; older ones weigh less."""

    cpu: float = 0.0
    whole: float = 0.0
    stopped: float = 0.0
    work: float = 0.0


class DeviceState(msgspec.Struct):
    """One device.

    Attributes:
        cpus, uplink_bit_s, downlink_bit_s: as its profile says, before dilation.
        held: whether its limits were read back; None: not yet, or nothing to read (software).
        reprofiled: the round in which its profile last changed.
        phase: the last phase that it reported. `taken`: how many of the index's phases are counted here.
        round: the last one that drew it.
        activity: what it does in its round: waiting, receiving, working, server half, done, left out, not drawn.
        since_ns: when its task was handed to the link; 0 before.
        round_bytes: both ways, in its round.
        took_s: length of its round, once done; `before_s`: of the one before.
        cpu_share, throttled_share: of its quota and of its own work, over the last seconds that it reported: `recent`.
        uplink_share, downlink_share: of the limit, while it sent or received.
        cuts, predicted_s, actual_s: one entry per row of the state; None: not drawn, not predicted, not done.
        loads: the same, shares of its limits over the round; None: not settled, or no update came.
        joules: the same, of a board with a power sensor.
        slowed: what slowed it down, from and to on the time axis; the first `slowed_before` are of earlier sessions.
        phase_ns: by name, as reported, not divided.
        stopped_ns: how long its CPU quota stopped it in decode, compute and encode.
        pieces, pieces_in_quota: batches that it reported, and those within one period's quota.
    """

    name: str
    profile: str
    cpus: float
    uplink_bit_s: float
    downlink_bit_s: float
    memory_mib: int
    samples: int
    held: bool | None = None
    reprofiled: int | None = None
    phase: str = ""
    taken: int = 0
    round: int = -1
    activity: str = ""
    since_ns: int = 0
    round_bytes: int = 0
    took_s: float | None = None
    before_s: float = 0.0
    cpu_share: float | None = None
    throttled_share: float | None = None
    recent: RecentUse = msgspec.field(default_factory=RecentUse)
    uplink_share: float | None = None
    downlink_share: float | None = None
    memory_used_mib: float | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    cuts: list[int | None] = []
    predicted_s: list[float | None] = []
    actual_s: list[float | None] = []
    loads: list[DeviceLoad | None] = []
    joules: list[float | None] = []
    slowed: list[tuple[str, float, float]] = []
    slowed_before: int = 0
    phase_ns: dict[str, int] = {}
    stopped_ns: int = 0
    pieces: int = 0
    pieces_in_quota: int = 0

    @property
    def in_quota(self) -> float | None:
        """Share of its batches within one period's quota; None: it counted none."""
        return self.pieces_in_quota / self.pieces if self.pieces else None


class RunEvent(msgspec.Struct, array_like=True):
    """Something that happened, with its place on the time axis. `kind`: a key of `vocabulary.EVENTS`."""

    axis_s: float
    round: int
    kind: str
    device: str
    text: str


class RunState(msgspec.Struct):
    """A run, as far as its records were read.

    Attributes:
        rev: grows with every call of the reducer.
        epoch: grows when rows were removed, because a resumed run does rounds again.
        elapsed_s: end of the time axis.
        run: the index. Of sessions that are over it has who was there, clocks and calibration; of the session that goes
            on also its last rounds.
        first_row: index of the session's first row.
        rounds: those of the index, by number.
        begin_ns, before_s: when the session's first round began, and where that is on the time axis.
        lanes: whether rounds of this session overlap (an asynchronous method).
        told: whether the end of the session is among the events.
    """

    version: int = VERSION
    rev: int = 0
    epoch: int = 0
    elapsed_s: float = 0.0
    run: RunFacts = msgspec.field(default_factory=RunFacts)
    rows: list[RoundRow] = []
    devices: dict[str, DeviceState] = {}
    events: list[RunEvent] = []
    first_row: int = 0
    rounds: dict[int, IndexedRound] = {}
    bytes_up: int = 0
    bytes_down: int = 0
    begin_ns: int = 0
    before_s: float = 0.0
    lanes: bool = False
    told: bool = False

    @property
    def sessions(self) -> list[Session]:
        return self.run.sessions

    @property
    def calibration(self) -> list[t.Calibrated]:
        """Of the last session."""
        return self.session.calibration

    @property
    def session(self) -> Session:
        return self.sessions[-1]

    @property
    def dilation(self) -> float:
        return self.session.started.dilation

    @property
    def ended(self) -> str:
        """Why the run ended; empty while it goes on."""
        finished = self.session.finished
        return finished.why if finished is not None else ""

    @property
    def current(self) -> RoundRow | None:
        """The round in progress, or the last one."""
        return self.rows[-1] if self.rows else None

    @property
    def last_finished(self) -> RoundRow | None:
        """The last round that is over, by number."""
        return next((row for row in reversed(self.rows) if row.seconds is not None), None)

    @property
    def shown_first(self) -> RoundRow | None:
        """The round in progress; of a run that is over the last finished one."""
        over = bool(self.sessions) and bool(self.ended)
        return (self.last_finished if over else None) or self.current

    @property
    def finished(self) -> list[RoundRow]:
        """Rounds that are over, in the order in which they ended: those of an asynchronous method overlap."""
        return sorted((row for row in self.rows if row.seconds is not None), key=lambda row: row.end_s)

    @property
    def accuracy(self) -> float | None:
        """That of the evaluated round that ended last."""
        known = (row for row in self.rows if row.accuracy is not None)
        last = max(known, key=lambda row: row.end_s, default=None)
        return last.accuracy if last is not None else None

    @property
    def memory_mib(self) -> dict[str, int]:
        """The limit of every device."""
        return {name: device.memory_mib for name, device in self.devices.items()}

    def activity(self, device: str) -> str:
        """What a device does: its `activity` during rounds; away; present before the first round and after the run."""
        if not self.session.device(device).present:
            return "away"
        return "present" if self.ended or not self.rows else self.devices[device].activity

    # ---- the time axis ----

    def row_at(self, at_ns: int) -> RoundRow | None:
        """The session's last round that had begun at that moment."""
        rows = (self.rows[i] for i in range(len(self.rows) - 1, self.first_row - 1, -1))
        return next((row for row in rows if row.start_ns <= at_ns), None)

    def axis(self, at_ns: int) -> float:
        """Where a moment of this session is on the time axis: what is between two rounds is at the end of the first."""
        row = self.row_at(at_ns)
        if row is None:
            before = self.rows[self.first_row - 1] if self.first_row else None
            return before.axis_s + (before.seconds or 0.0) if before is not None else 0.0
        if self.lanes:
            return self.wall(at_ns)
        since = max(0.0, (at_ns - row.start_ns) / 1e9 / self.dilation)
        return row.axis_s + (since if row.seconds is None else min(row.seconds, since))

    def wall(self, at_ns: int) -> float:
        """The same where rounds overlap: the wall clock since the session's first round."""
        return self.before_s + max(0.0, (at_ns - self.begin_ns) / 1e9 / self.dilation)
