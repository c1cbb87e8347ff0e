"""What is shown of a run while its records come in: the state that `orchestrator.records.live.reducer` keeps. Pure.

The state is small enough to be kept in a file beside the records: a round that is settled is one row; of a device there
is what holds now, and its history as columns (one entry per round). The index holds the rounds that are not settled.
Times `*_ns` are the orchestrator's clock; all others are seconds divided by the dilation. The time axis is that of
`summary.json`: the sum of the rounds, without evaluations and checkpoints; where rounds overlap it is the wall clock.
Rounds are numbered as in the records, from 0; people read numbers from 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from orchestrator.records import types as t
from orchestrator.records.critical.bound_by import RoundBounds
from orchestrator.records.critical.whatif import Saving
from orchestrator.records.run_index import RunFacts, Session
from orchestrator.records.timeline.board import BoardRound
from orchestrator.records.timeline.disturbance import HostOfRound
from orchestrator.records.timeline.held import HeldTask
from orchestrator.records.timeline.in_quota import InQuota
from orchestrator.records.timeline.utilisation import DeviceLoad

VERSION = 17
"""Of the structs below. A state of another version is made again from the records."""

PATIENCE = 64
"""A round is settled after so many others, whatever phases of it are missing. As many settled rounds stay in the index,
without their transfers and steps: their accuracy may come late, and a resumed run may do them again."""

EVER = 1 << 60
"""The patience that keeps all rounds in the index."""


class RoundRow(msgspec.Struct, array_like=True):
    """One round. What is known of a finished round from the phases of its devices comes some time after its end."""

    number: int
    offset: int  # where its first record begins in the file, in bytes
    session: int  # index of its session
    start_ns: int
    axis_s: float  # its start on the time axis
    drawn: int
    lane: str = ""
    end_ns: int = 0  # when it ended; 0: not yet. `overlaps`: rounds of other lanes ran at the same time
    overlaps: bool = False
    seconds: float | None = None
    accuracy: float | None = None
    loss: float | None = None
    extra: dict[str, float] = {}
    merged: int = 0
    left_out: dict[str, int] = {}  # devices by how their work was left out
    block: str | None = None
    position: int | None = None
    # `straggler`, `gap_s`, `why`, `behind_s`: as in `orchestrator.records.critical.stragglers`, divided by the dilation
    straggler: str = ""
    gap_s: float | None = None
    why: str = ""
    behind_s: tuple[float, ...] = ()
    profile: str | None = None  # of the straggler, at the start of the round
    # `waited_for`, `waited_s`: for whom the round waited last; what all devices together waited for others
    waited_for: str | None = None
    waited_s: float = 0.0
    # by how much devices and server on its critical path were behind the reference that they keep, at most; None: they
    # keep none. `server`: of the server, also where it is not on the path
    late_s: float | None = None
    server: HeldTask | None = None
    # of the critical path, what the orchestrator did, at the speed of this host
    orchestrator_share: float | None = None
    residual: float | None = None  # as in `orchestrator.records.timeline.timeline`, of the worst device
    bounds: RoundBounds | None = None  # what bounded it; None: not known, or not yet. `why_not`: why it is not known
    why_not: str = ""
    # seconds that faster groups of devices would have saved; `slowest`: the devices with the slowest links
    savings: tuple[Saving, ...] = ()
    slowest: tuple[str, ...] = ()
    # what the host did; not compared with other rounds. `disturbed`: causes, compared with those so far
    host: HostOfRound = HostOfRound()
    disturbed: tuple[str, ...] | None = None
    bytes: int = 0  # both ways, of all devices
    rev: int = 0  # revision of the state when the row last changed

    @property
    def end_s(self) -> float:
        """Its end on the time axis."""
        return self.axis_s + (self.seconds or 0.0)


class DeviceRound(msgspec.Struct):
    """What one device adds to the sums of a run by one round."""

    # `up`, `down`: bytes
    up: int = 0
    down: int = 0
    in_quota: InQuota = msgspec.field(default_factory=InQuota)  # tasks and batches within one period's quota
    spent: dict[str, int] = {}  # nanoseconds by name, over its window; `in_round`: those until the end of the round
    in_round: dict[str, int] = {}
    waited: dict[str, int] | None = None  # nanoseconds by cause (`critical_path.WAITS`); None: it took no part


class IndexedRound(msgspec.Struct):
    """A round that the index still has."""

    row: int  # index of its RoundRow
    shown: bool = False  # whether its straggler was worked out once, before all was known
    settled: bool = False  # whether all is known for good; the index has dropped its transfers and steps then
    moved: dict[str, tuple[int, int]] = {}  # bytes up and down by device, of its records that the index has
    updated: set[str] = set()  # devices whose update was counted
    devices: dict[str, DeviceRound] = {}  # what it adds to the sums of the devices


MEMORY_NS = 10e9
"""CPU and throttling are averages over about so many nanoseconds (not divided) that a device reported."""


class RecentUse(msgspec.Struct):
    """CPU time, all time, time in which the quota stopped it, and own work, in nanoseconds; older ones weigh less."""

    cpu: float = 0.0
    whole: float = 0.0
    stopped: float = 0.0
    work: float = 0.0

    def add(self, length: int, cpu: int, stopped: int, own_work: bool) -> None:
        """One phase."""
        keep = math.exp(-length / MEMORY_NS)
        self.cpu, self.whole = self.cpu * keep + cpu, self.whole * keep + length
        if own_work:
            self.stopped, self.work = self.stopped * keep + stopped, self.work * keep + length


class DeviceState(msgspec.Struct):
    """One device."""

    name: str
    profile: str
    # `cpus`, `uplink_bit_s`, `downlink_bit_s`: as its profile says, before dilation
    cpus: float
    uplink_bit_s: float
    downlink_bit_s: float
    memory_mib: int
    samples: int
    held: bool | None = None  # whether its limits were read back; None: not yet, or nothing to read (software)
    reprofiled: int | None = None  # the round in which its profile last changed
    phase: str = ""  # the last phase that it reported. `taken`: how many of the index's phases are counted here
    taken: int = 0
    round: int = -1  # the last one that drew it
    activity: str = ""  # what it does in its round: waiting, receiving, working, server half, done, left out, not drawn
    since_ns: int = 0  # when its task was handed to the link; 0 before
    round_bytes: int = 0  # both ways, in its round
    took_s: float | None = None  # length of its round, once done; `before_s`: of the one before
    before_s: float = 0.0
    # `cpu_share`, `throttled_share`: of its quota and of its own work, over the last seconds that it reported: `recent`
    cpu_share: float | None = None
    throttled_share: float | None = None
    recent: RecentUse = msgspec.field(default_factory=RecentUse)
    # `uplink_share`, `downlink_share`: of the limit, while it sent or received
    uplink_share: float | None = None
    downlink_share: float | None = None
    memory_used_mib: float | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    # `cuts`, `predicted_s`, `actual_s`: one entry per row of the state; None: not drawn, not predicted, not done
    cuts: list[int | None] = []
    predicted_s: list[float | None] = []
    actual_s: list[float | None] = []
    update_norms: list[float | None] = []
    # the same, shares of its limits over the round; None: not known yet, or no update came
    loads: list[DeviceLoad | None] = []
    # the same, by how much later it was because it did not get its CPU, divided by the dilation
    not_got_s: list[float | None] = []
    boards: list[BoardRound | None] = []  # the same, of a board's sensors
    kept: list[HeldTask | None] = []  # the same, of a device that keeps a reference's time
    # what slowed it down, from and to on the time axis; the first `slowed_before` are of earlier sessions
    slowed: list[tuple[str, float, float]] = []
    slowed_before: int = 0
    # `worked_ns`, `stopped_ns`: its own work as reported, and for how much of it its CPU quota stopped it; not divided
    worked_ns: int = 0
    stopped_ns: int = 0
    in_quota: InQuota = msgspec.field(default_factory=InQuota)  # tasks and batches within one period's quota

    @property
    def columns(self) -> tuple[list[Any], ...]:
        """Those with one entry per row of the state."""
        told = self.loads, self.not_got_s, self.boards, self.kept
        return self.cuts, self.predicted_s, self.actual_s, self.update_norms, *told


class RunEvent(msgspec.Struct, array_like=True):
    """Something that happened, with its place on the time axis. `kind`: a key of `vocabulary.EVENTS`."""

    axis_s: float
    round: int
    kind: str
    device: str
    text: str


class Sums(msgspec.Struct):
    """What rounds add up to that the index has forgotten, in the order of their numbers, by device."""

    # `spent`, `in_round`: by name, divided by the dilation, in nanoseconds
    spent: dict[str, dict[str, float]] = {}
    in_round: dict[str, dict[str, float]] = {}
    waited: dict[str, dict[str, float]] = {}  # seconds by cause; `whole_s`: of the rounds in which the device took part
    whole_s: dict[str, float] = {}
    rounds: int = 0  # those of a smaller number are in it

    def add(self, row: RoundRow, devices: Mapping[str, DeviceRound], dilation: float) -> None:
        """A finished round."""
        self.rounds = max(self.rounds, row.number + 1)
        for name, device in devices.items():
            for into, more in ((self.spent, device.spent), (self.in_round, device.in_round)):
                _accumulate(into.setdefault(name, {}), more, dilation)
            if device.waited is not None:
                mine = self.waited.setdefault(name, {})
                for cause, ns in device.waited.items():
                    mine[cause] = mine.get(cause, 0.0) + ns / 1e9 / dilation
                self.whole_s[name] = self.whole_s.get(name, 0.0) + (row.seconds or 0.0)


def _accumulate(into: dict[str, float], more: Mapping[str, int], dilation: float) -> None:
    for name, length in more.items():
        into[name] = into.get(name, 0.0) + length / dilation


class RunState(msgspec.Struct):
    """A run, as far as its records were read."""

    version: int = VERSION
    whole: bool = False  # the index keeps all records, for reports and traces
    patience: int = PATIENCE  # how many settled rounds stay in the index
    rev: int = 0  # grows with every call of the reducer
    epoch: int = 0  # grows when rows were removed, because a resumed run does rounds again
    elapsed_s: float = 0.0  # end of the time axis
    # the index. Of sessions that are over it has who was there, clocks and calibration; of the session that goes on
    # also its last rounds
    run: RunFacts = msgspec.field(default_factory=RunFacts)
    rows: list[RoundRow] = []
    devices: dict[str, DeviceState] = {}
    events: list[RunEvent] = []
    first_row: int = 0  # index of the session's first row
    rounds: dict[int, IndexedRound] = {}  # those of the index, by number
    sums: Sums = msgspec.field(default_factory=Sums)  # of rounds that the index has forgotten
    happened: int = 0  # faults, devices gone and back, work left out, steps of a scenario
    bytes_up: int = 0
    bytes_down: int = 0
    # by session, when its first round began; 0: not yet. `before_s`: where that of the last session is on the time axis
    begun_ns: list[int] = []
    before_s: float = 0.0
    lanes: bool = False  # whether rounds of this session overlap (an asynchronous method)
    # whether the end of the session is among the events. `told_events`, `told_limits`: how many of the index's events
    # and limits were looked at
    told: bool = False
    told_events: int = 0
    told_limits: int = 0

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
        facts = self.session.devices.get(device)
        if facts is None or not facts.present:
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
        return self.before_s + max(0.0, (at_ns - self.begun_ns[-1]) / 1e9 / self.dilation)
