"""The records of a run: every fact, one struct, one line of `records.jsonl`.

Times `*_ns` are the orchestrator's monotonic clock unless the field says `device_ns`; they are not divided by the
dilation (`RunStarted.dilation` says by what to divide). Reports, pages, traces and comparisons read only these.

Those that a long run has by the million are kept from the garbage collector (`gc=False`): they cannot form a cycle.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from edgebed.wire.messages import Assignment, Report
from edgebed.wire.piece_times import Phase
from orchestrator.records.board_marks import BoardMark
from orchestrator.records.host_records import BoardReadings, HalfWork, HostRound, RequestsLost, Served, ServerStep

SIMULATED = "simulated"
"""What `RunStarted.backend` and `RunStarted.enforcement` say of a simulation."""

Ending = Literal["finished", "interrupted", "failed"]
"""How a run ended."""


class RunStarted(msgspec.Struct, frozen=True, tag="run_started"):
    at_ns: int
    wall: str  # ISO 8601, UTC: the only wall-clock time
    run: str
    experiment: str
    method: str
    seed: int
    backend: str
    enforcement: str  # docker | kernel | software | simulated | unlimited; of the devices that have limits
    dilation: float
    calibrated: bool
    resumed_from: int  # first round of this session
    target_accuracy: float
    host: dict[str, str] = {}
    devices: tuple[DeviceInfo, ...] = ()
    server_slots: int = 0  # server halves that train at once; 0: an older version wrote it
    grain: str = "quota"  # how the CPU quotas are divided: quota | period | pacing
    series: str = ""  # id that all runs of one experiment share
    setting: dict[str, Any] = {}  # the values that it has of the keys that its experiment sweeps
    interleaved: bool = False  # its rounds alternated with those of other methods: see TurnEnded
    server_cpus: float | None = None  # of the server, before dilation; None: what the host leaves, not dilated
    dilation_by: str = ""  # CPUs | network | the experiment: what made it as large as it is; "": 1, or an older version
    held_server_cpus: float | None = None  # its quota as read back; None: nothing is in force
    queued_uploads: int = 4  # of one device that may wait for its server half; older versions had 4 and did not say so
    speed: str = "host"  # name of the reference whose CPU seconds those of the devices are, or host
    demand: float = 1.0  # CPU seconds that this host needs for one of the reference, on average, as D allows for
    head_room: float = 1.0  # quotas ÷ what this host needs on average
    spread: bool = False  # pieces vary as those of the reference did, drawn from the seed
    host_index: HostIndex | None = None  # at the start; None: not measured, as in simulations and older versions


class HostIndex(msgspec.Struct, frozen=True):
    """CPU seconds of a reference for one of this host while no device works, as a small loop tells, with its standard
    error. `drift`: by how much the loop became slower meanwhile. The devices' own work differs by kind."""

    reference: str
    index: float
    error: float
    drift: float


class DeviceInfo(msgspec.Struct, frozen=True):
    name: str
    profile: str
    cpus: float  # as requested in the fleet file, before dilation
    uplink_bit_s: int
    downlink_bit_s: int
    memory_mib: int
    samples: int
    labels: tuple[int, ...]
    board: str = ""  # name of the real board that it is
    look_alike_of: str = ""  # name of the real board to which its profile was fitted
    unlimited: bool = False  # a real board: nothing is held, cpus are its cores, rates are 0
    threads: int = 0  # of torch; 0: an older version wrote it, they followed the CPUs after dilation


class LimitsSet(msgspec.Struct, frozen=True, tag="limits_set"):
    """Limits were put on a device and read back. Requested values are after dilation. `held_*` are None where nothing
    is in force, and in a run of software enforcement, where there is nothing to read."""

    at_ns: int
    device: str
    why: str  # start | measured | rejoin | reprofile
    profile: str
    cpus: float
    uplink_bit_s: int
    downlink_bit_s: int
    held_cpus: float | None
    held_uplink_bit_s: int | None
    held_downlink_bit_s: int | None
    details: dict[str, str] = {}
    latency_ms: float = 0.0  # in each direction
    period_us: int = 100_000  # of the CPU quota
    held_period_us: int | None = None
    unlimited: bool = False  # a real board: nothing is held, cpus are its cores, rates are 0
    ceiling_cpus: float | None = None  # of the quota; None: `cpus`. Larger where a reference is kept


class Calibrated(msgspec.Struct, frozen=True, tag="calibrated"):
    """One row of the calibration table."""

    at_ns: int
    device: str
    quantity: str  # cpu busy, cpu step, uplink, downlink, work
    condition: str  # e.g. "alone, 8 connections, 1 MB"
    requested: float
    measured: float
    unit: str
    error: float  # measured / requested - 1
    judged: bool
    passed: bool
    cause: str = ""  # of a failure, and its hint


class CutProfiled(msgspec.Struct, frozen=True, tag="cut_profiled"):
    at_ns: int
    cut: int
    model_bytes: int
    feature_bytes: int
    device_s: float
    server_s: float


class ClockOffset(msgspec.Struct, frozen=True, gc=False, tag="clock_offset"):
    """device clock = orchestrator clock + offset, within ± uncertainty (half the best round trip)."""

    at_ns: int
    device: str
    offset_ns: int
    uncertainty_ns: int


class RoundStarted(msgspec.Struct, frozen=True, tag="round_started"):
    at_ns: int
    round: int
    planned_s: float  # orchestrator time spent planning
    lr: float
    devices: tuple[str, ...]  # that take part
    assignments: dict[str, Assignment] = {}
    predicted_s: dict[str, float] = {}
    notes: dict[str, object] = {}
    lane: str = ""  # of an asynchronous method: rounds of different lanes overlap in time, those of one lane never do


class TaskSent(msgspec.Struct, frozen=True, gc=False, tag="task_sent"):
    at_ns: int  # first chunk handed over
    round: int
    device: str
    task: str
    bytes: int  # of the body, before it is cut into frames
    state_bytes: int = 0  # of these, the server's copy of a device state that the device has lost


class TaskDelivered(msgspec.Struct, frozen=True, gc=False, tag="task_delivered"):
    at_ns: int
    round: int
    device: str
    task: str
    bytes: int = 0  # of the frames that carried it


class UploadReceived(msgspec.Struct, frozen=True, gc=False, tag="upload_received"):
    """One upload (features of a batch) has arrived whole."""

    at_ns: int
    first_ns: int  # first chunk arrived
    round: int
    device: str
    batch: int
    bytes: int
    taken_ns: int = 0  # the server half had a place for it, and the device was told; 0: an older version wrote it


class ReplyDelivered(msgspec.Struct, frozen=True, gc=False, tag="reply_delivered"):
    """The answer to one upload has arrived whole at the device."""

    at_ns: int
    first_ns: int  # first chunk handed over
    round: int
    device: str
    batch: int
    bytes: int


class UpdateReceived(msgspec.Struct, frozen=True, gc=False, tag="update_received"):
    at_ns: int
    first_ns: int
    round: int
    device: str
    task: str
    bytes: int
    report: Report


class DevicePhases(msgspec.Struct, frozen=True, gc=False, tag="device_phases"):
    """Phases a device reported; `Phase` times are on the device's clock."""

    at_ns: int
    device: str
    incarnation: str
    phases: tuple[Phase, ...]


class DeviceDone(msgspec.Struct, frozen=True, gc=False, tag="device_done"):
    """The device's contribution is complete: update here and every server step done. `held_s`: how long its uploads,
    arrived whole, waited for the server half to take them; its link stood still meanwhile. `late_s`, `early_s`: by how
    much its events came after, and before, those of a device of the reference that it keeps, at most, as
    `orchestrator.rounds.lateness` judges; None: it keeps none, or its pieces are not known. `moved`: the norm of its
    update's difference from what it was sent ÷ the norm of that; None: not known, or that was zero. `extra_bytes`: of
    what its update held beside weights."""

    at_ns: int
    round: int
    device: str
    seconds: float
    communication_s: float
    link_bytes_s: float
    server_s: float
    held_s: float = 0.0
    late_s: float | None = None
    early_s: float | None = None
    moved: float | None = None
    extra_bytes: int = 0


class DeviceOut(msgspec.Struct, frozen=True, tag="device_out"):
    """A device's work in this round is left out. `how`: lost, failed, refused, diverged, late, cancelled. `trace`: the
    traceback of an unexpected error, on the device or in its server half. `limit_s`: where a time limit put it out,
    that limit in seconds from the start of the round, after dilation; None also in a record of an older version, see
    `older_words.limit_of`."""

    at_ns: int
    round: int
    device: str
    how: str
    why: str
    trace: str = ""
    limit_s: float | None = None


class DeviceJoined(msgspec.Struct, frozen=True, tag="device_joined"):
    at_ns: int
    device: str
    incarnation: str
    again: bool
    host: dict[str, str] = {}


class DeviceLeft(msgspec.Struct, frozen=True, tag="device_left"):
    at_ns: int
    device: str
    why: str


class OrchestratorPhase(msgspec.Struct, frozen=True, gc=False, tag="orchestrator_phase"):
    """What the orchestrator did while all devices waited: plan, merge, evaluate, checkpoint."""

    start_ns: int
    end_ns: int
    round: int
    name: str


class RoundFinished(msgspec.Struct, frozen=True, tag="round_finished"):
    """`at_ns` is after the merge, before the evaluation. `merged` names whose work is in the new weights."""

    at_ns: int
    round: int
    seconds: float
    merged: tuple[str, ...]
    why: str  # all done | enough | deadline | budget | void


class TurnEnded(msgspec.Struct, frozen=True, tag="turn_ended"):
    """In an interleaved experiment: from now until the next round of this run, other methods had the fleet. All methods
    that played this round on the same standing fleet have the same `block`; `position` of `of` is this one's place in
    it, from 0."""

    at_ns: int
    round: int
    block: str
    position: int
    of: int


class Evaluated(msgspec.Struct, frozen=True, tag="evaluated"):
    at_ns: int
    round: int
    accuracy: float
    loss: float
    seconds: float
    extra: dict[str, float] = {}  # what the method measures besides, e.g. accuracy per exit


class FinalTest(msgspec.Struct, frozen=True, tag="final_test"):
    """The last weights on the test part, once, in a run whose rounds were evaluated on a validation part."""

    at_ns: int
    round: int  # the last one that was merged
    accuracy: float
    loss: float
    seconds: float
    extra: dict[str, float] = {}


class Fault(msgspec.Struct, frozen=True, tag="fault"):
    """Something unexpected that did not end the run."""

    at_ns: int
    device: str
    what: str


class ScenarioStep(msgspec.Struct, frozen=True, gc=False, tag="scenario_step"):
    """An event of the scenario began on a device, went on to the next rate of its trace, or was undone. What was asked,
    in words and as rates after dilation, and what was read back. Rates are None where the step does not touch them or
    nothing can be read back."""

    at_ns: int  # in force
    asked_ns: int  # when it was due
    device: str
    event: int  # its place in the scenario, from 0
    kind: str  # limits | trace | rate (a trace goes on) | cut | freeze | leave | return | compete
    begins: bool  # False: it is undone
    asked: str
    held: str = ""
    error: str = ""  # why it could not be done, with a hint
    uplink_bit_s: int | None = None
    downlink_bit_s: int | None = None
    held_uplink_bit_s: int | None = None
    held_downlink_bit_s: int | None = None


class RunFinished(msgspec.Struct, frozen=True, tag="run_finished"):
    """`why`, for people: target reached, rounds done, interrupted, error: …. `ending`: the same as data; None in a
    record of an older version, see `older_words.ending_of`."""

    at_ns: int
    why: str
    ending: Ending | None = None
    host_index: HostIndex | None = None  # None: not measured, as in `RunStarted`, or the run did not finish


Happened = DeviceOut | DeviceJoined | DeviceLeft | Fault | ScenarioStep | BoardMark
"""What a report tells beside rounds."""

Record = (
    RunStarted
    | LimitsSet
    | Calibrated
    | CutProfiled
    | ClockOffset
    | RoundStarted
    | TaskSent
    | TaskDelivered
    | UploadReceived
    | ServerStep
    | HalfWork
    | ReplyDelivered
    | UpdateReceived
    | DevicePhases
    | BoardReadings
    | DeviceDone
    | DeviceOut
    | DeviceJoined
    | DeviceLeft
    | OrchestratorPhase
    | RoundFinished
    | HostRound
    | TurnEnded
    | Evaluated
    | FinalTest
    | Served
    | RequestsLost
    | Fault
    | ScenarioStep
    | RunFinished
)
