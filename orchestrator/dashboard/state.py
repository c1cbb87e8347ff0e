"""What the page knows of one run, folded from its records one by one. Pure, and small enough to be kept beside them.

A round that is over is one row; of a device there is what is true now, and its history as columns (one entry per
round). Times `*_ns` are the orchestrator's clock; all others are seconds divided by the dilation. The time axis is that
of `summary.json`: it adds up the rounds, so evaluations and checkpoints are not in it; where rounds overlap it is the
wall clock. Rounds are numbered as in the records, from 0; what is shown to people counts from 1.
"""

from __future__ import annotations

import msgspec

from orchestrator.records import types as t
from orchestrator.records.run_index import Clock

VERSION = 5
"""Of the structs below: a state of another version is folded again."""


class SessionState(msgspec.Struct):
    """One life of the orchestrator: a resumed run has several, each with a clock of its own."""

    started: t.RunStarted
    presence: dict[str, list[tuple[int, str]]] = {}  # by device: (ns, incarnation when it joined, "" when it left)
    clocks: dict[str, dict[str, Clock]] = {}  # by device and incarnation
    finished: str = ""  # why it ended
    begin_ns: int = 0  # when its first round began
    before_s: float = 0.0  # on the time axis when it began
    lanes: bool = False  # its rounds overlap (an asynchronous method): then the axis is the wall clock

    def incarnation(self, device: str) -> str:
        return next((i for _, i in reversed(self.presence.get(device, [])) if i), "")

    def present(self, device: str) -> bool:
        events = self.presence.get(device)
        return bool(events and events[-1][1])


class Row(msgspec.Struct, array_like=True):
    """One round. `offset` is where its first record begins in the file; `axis_s` its start on the time axis. Straggler,
    why and `behind_s` (cpu, uplink, downlink, server) as in `orchestrator.records.stragglers`."""

    number: int
    offset: int
    session: int  # which stretch
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
    rev: int = 0  # of the state when the row last changed


class Account(msgspec.Struct):
    """Where one device's time went in a round that is not settled yet; nanoseconds."""

    sent_ns: int = 0
    done_ns: int = 0
    seconds: float | None = None  # when it got done; not divided
    out: str = ""
    cpu: int = 0
    uplink: int = 0
    download_end_ns: int = 0  # orchestrator's clock
    tail_end_ns: int = 0
    held_ns: int = 0
    reply_wait: int = 0
    replies_up: int = 0
    replies_down: int = 0
    moved: bool = False  # the task is on the device


class Open(msgspec.Struct):
    """A round about which more may be said: it goes on, or phases of it are still to be reported."""

    row: int  # index of its Row
    plan_end_ns: int = 0
    finished: bool = False
    devices: dict[str, Account] = {}


class Device(msgspec.Struct):
    """One device. Limits are as its profile says, before dilation. `cuts`, `predicted_s`, `actual_s`: one entry per row
    of the state; None: not drawn, not predicted, not done."""

    name: str
    profile: str
    cpus: float
    uplink_bit_s: float
    downlink_bit_s: float
    memory_mib: int
    samples: int
    held: bool | None = None  # what is in force was read back; None: not yet, or nothing to read (software)
    reprofiled: int | None = None  # round in which its profile last changed
    phase: str = ""  # the last that it reported
    cpu_share: float | None = None  # of its quota, over the last seconds it reported
    throttled_share: float | None = None  # of its own work
    uplink_share: float | None = None  # of the limit, while it sent
    downlink_share: float | None = None
    memory_used_mib: float | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    cuts: list[int | None] = []
    predicted_s: list[float | None] = []
    actual_s: list[float | None] = []
    phase_ns: dict[str, int] = {}  # as reported, not divided; waiting is not told apart here
    stopped_ns: int = 0  # of decode, compute, encode: its CPU quota stopped it


class Mark(msgspec.Struct, array_like=True):
    """Something to see on the time axis. `kind`: left, joined, out, fault, profile, resumed, ended."""

    axis_s: float
    round: int
    kind: str
    device: str
    text: str


class State(msgspec.Struct):
    """A run as the page sees it. `epoch` changes when rows were taken back (a resumed run does rounds again)."""

    version: int = VERSION
    rev: int = 0
    epoch: int = 0
    elapsed_s: float = 0.0
    sessions: list[SessionState] = []
    rows: list[Row] = []
    devices: dict[str, Device] = {}
    marks: list[Mark] = []
    calibration: list[t.Calibrated] = []
    open: dict[int, Open] = {}  # by round
    tasks: dict[str, tuple[int, str]] = {}  # of the open rounds: task -> round, device
    stale: set[int] = set()  # open rounds whose straggler must be worked out again
    bytes_up: int = 0
    bytes_down: int = 0
    last_ns: int = 0

    @property
    def session(self) -> SessionState:
        return self.sessions[-1]

    @property
    def dilation(self) -> float:
        return self.session.started.dilation

    @property
    def current(self) -> Row | None:
        """The round in progress, or the last one."""
        return self.rows[-1] if self.rows else None
