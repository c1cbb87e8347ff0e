"""What is known of a run while its records come in: the state that `orchestrator.records.reducer` keeps. Pure.

The state is small enough to be kept in a file beside the records: a round that is over is one row; of a device there is
what holds now, and its history as columns (one entry per round). Times `*_ns` are the orchestrator's clock; all others
are seconds divided by the dilation. The time axis is that of `summary.json`: the sum of the rounds, without evaluations
and checkpoints; where rounds overlap it is the wall clock. Rounds are numbered as in the records, from 0; people read
numbers from 1.
"""

from __future__ import annotations

import msgspec

from orchestrator.records import types as t
from orchestrator.records.run_index import Session
from orchestrator.records.stragglers import Costs

VERSION = 6
"""Of the structs below. A state of another version is made again from the records."""


class RoundRow(msgspec.Struct, array_like=True):
    """One round.

    Attributes:
        offset: where its first record begins in the file, in bytes.
        session: index of its session.
        axis_s: its start on the time axis.
        straggler, gap_s, why, behind_s: as in `orchestrator.records.stragglers`, divided by the dilation.
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
    rev: int = 0


class OpenDevice(msgspec.Struct):
    """One device in a round that is not settled yet. `seconds`: when it was done, not divided."""

    sent_ns: int = 0
    done_ns: int = 0
    download_end_ns: int = 0
    tail_end_ns: int = 0
    seconds: float | None = None
    costs: Costs = msgspec.field(default_factory=Costs)


class OpenRound(msgspec.Struct):
    """A round of which more may be reported: it goes on, or phases of it are missing. `row`: index of its RoundRow."""

    row: int
    plan_end_ns: int = 0
    finished: bool = False
    devices: dict[str, OpenDevice] = {}


class DeviceState(msgspec.Struct):
    """One device.

    Attributes:
        cpus, uplink_bit_s, downlink_bit_s: as its profile says, before dilation.
        held: whether its limits were read back; None: not yet, or nothing to read (software).
        reprofiled: the round in which its profile last changed.
        phase: the last phase that it reported.
        activity: what it does in its round: waiting, receiving, working, server half, done, left out, not drawn.
        since_ns: when its task was handed to the link; 0 before.
        round_bytes: both ways, in its round.
        took_s: length of its round, once done; `before_s`: of the one before.
        cpu_share, throttled_share: of its quota and of its own work, over the last seconds that it reported.
        uplink_share, downlink_share: of the limit, while it sent or received.
        cuts, predicted_s, actual_s: one entry per row of the state; None: not drawn, not predicted, not done.
        phase_ns: by name, as reported, not divided.
        stopped_ns: how long its CPU quota stopped it in decode, compute and encode.
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
    activity: str = ""
    since_ns: int = 0
    round_bytes: int = 0
    took_s: float | None = None
    before_s: float = 0.0
    cpu_share: float | None = None
    throttled_share: float | None = None
    uplink_share: float | None = None
    downlink_share: float | None = None
    memory_used_mib: float | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    cuts: list[int | None] = []
    predicted_s: list[float | None] = []
    actual_s: list[float | None] = []
    phase_ns: dict[str, int] = {}
    stopped_ns: int = 0


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
        calibration: of the last session.
        open: rounds that are not settled, by number.
        tasks: of the open rounds: round and device by task.
        stale: open rounds whose straggler must be worked out again.
        last_ns: time of the last record.
        begin_ns, before_s: when the session's first round began, and where that is on the time axis.
        lanes: whether rounds of this session overlap (an asynchronous method).
    """

    version: int = VERSION
    rev: int = 0
    epoch: int = 0
    elapsed_s: float = 0.0
    sessions: list[Session] = []
    rows: list[RoundRow] = []
    devices: dict[str, DeviceState] = {}
    events: list[RunEvent] = []
    calibration: list[t.Calibrated] = []
    open: dict[int, OpenRound] = {}
    tasks: dict[str, tuple[int, str]] = {}
    stale: set[int] = set()
    bytes_up: int = 0
    bytes_down: int = 0
    last_ns: int = 0
    begin_ns: int = 0
    before_s: float = 0.0
    lanes: bool = False

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
        """The last that was measured."""
        return next((row.accuracy for row in reversed(self.rows) if row.accuracy is not None), None)

    def activity(self, device: str) -> str:
        """What a device does: its `activity` during rounds; away; present before the first round and after the run."""
        if not self.session.device(device).present:
            return "away"
        return "present" if self.ended or not self.rows else self.devices[device].activity

    # ---- the time axis ----

    def axis(self, at_ns: int) -> float:
        """Where a moment of this session is on the time axis: what is between two rounds is at the end of the first."""
        row = self.current
        if row is None or row.session != len(self.sessions) - 1:
            return self.elapsed_s
        if self.lanes:
            return self.wall(at_ns)
        since = max(0.0, (at_ns - row.start_ns) / 1e9 / self.dilation)
        return row.axis_s + (since if row.seconds is None else min(row.seconds, since))

    def wall(self, at_ns: int) -> float:
        """The same where rounds overlap: the wall clock since the session's first round."""
        return self.before_s + max(0.0, (at_ns - self.begin_ns) / 1e9 / self.dilation)
