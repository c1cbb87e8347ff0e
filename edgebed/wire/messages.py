"""Every message that crosses the wire, as typed structs. Pure.

Two families. *Control* messages are small, go over the control connection and may be lost, repeated or late: each
carries the state it speaks of, so receiving one twice changes nothing. *Headers* travel as the head of a transfer
(`edgebed.link.endpoint`), which is delivered once and whole or refused.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec

from edgebed.errors import WireError, printable
from edgebed.wire.piece_times import Phase, PieceTimes
from edgebed.wire.reading import Readings
from edgebed.wire.settings import Arrivals, Augment, Codec, LearningTask, Optimizer, Privacy
from edgebed.wire.texts import MOST_TEXT, Facts, Runs, Samples, Text, check_names, printed, take_over

SLOTS = 2
"""Encoded uploads that a device holds at once: one on the link and one that is ready to follow."""


class Assignment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one device does in one round (papers.md §0). Plain data: an agent executes it and knows no method.

    `model` is the plugin spec of the staged model, so the agent can build it for what it `learns`. `stages` is the cut:
    how many leading stages the device holds. `objective` names the device half
    (`edgebed.methods.parts.local_training`): `head`, `output`, …. `seed` fixes the order of the batches. `keep` makes
    the device's model physically smaller (FedDrop, HeteroFL): the kept indices of each width group
    (`edgebed.models.width`); a group that is not named has full width.
    `privacy` and `cpus` are filled in by the device itself. With `arrivals` the device serves instead of training: its
    batches come when requests arrive.
    """

    device: str
    model: dict[str, object]
    classes: int
    input_shape: tuple[int, ...]
    stages: int
    objective: str
    train_from: int = 0
    uploads: tuple[str, ...] = ("weights",)  # of: features, weights, logits
    batch_size: int = 100
    epochs: int = 1
    max_batches: int = 0  # per epoch; 0 = all
    steps: int = 0  # batches in all, over as many epochs as that takes; 0 = what `epochs` gives
    optimizer: Optimizer = Optimizer()
    codec: Codec = Codec()
    seed: int = 0
    keep: dict[str, tuple[int, ...]] = {}
    privacy: Privacy = Privacy()
    cpus: float = 0.0  # the device's quota, as it knows it
    arrivals: Arrivals | None = None
    slots: int = 0  # encoded uploads held before the device stands still; 0 = as few as keep its link busy (SLOTS)
    augment: Augment = Augment()
    hold: bool = False  # keep every upload until all batches are computed, then send them (DTFL's eq. 5)
    options: dict[str, object] = {}  # what a device half of its own needs
    vocabulary: int = 0
    per_token: bool = False

    @property
    def learns(self) -> LearningTask:
        """What the model is built for."""
        return LearningTask(self.input_shape, self.classes, self.vocabulary, self.per_token)

    @property
    def upload_slots(self) -> int:
        """Encoded uploads that the device holds before it stands still."""
        return self.slots or SLOTS


# ---- control, orchestrator -> device ---------------------------------------------------------------------------------


class Configure(msgspec.Struct, frozen=True, tag="configure"):
    """Settings an agent takes over at once; repeated until a Status carries its `seq`.

    `cpus`, `uplink_bit_s`, `downlink_bit_s` are the limits in force (after dilation). They are enforced by the agent
    itself only where `software` is true; else the kernel holds them and the agent only derives its thread count.
    `ceiling`: of a device that keeps a reference's time, the CPUs of its quota, which are more than `cpus`; 0: `cpus`.
    `period_s` is the period of the CPU quota. `paced`: the agent holds visible events as `edgebed.pacing` says;
    `by_reference`: for as long as a reference's core needs, and not this one. `share`: of its CPUs that it has; a rival
    uses the rest, and 0 lets it stand still.
    They are meant for the agent of that `incarnation`; another agent that uses the same device name ignores them.
    """

    seq: int
    threads: int
    heartbeat_s: float
    software: bool = False
    cpus: float = 0.0
    uplink_bit_s: int = 0
    downlink_bit_s: int = 0
    incarnation: str = ""
    period_s: float = 0.1
    paced: bool = False
    by_reference: bool = False
    share: float = 1.0
    ceiling: float = 0.0


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    task: str
    why: str


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Clock probe for the agent of that `incarnation`; `sent_ns` is the orchestrator's monotonic clock."""

    seq: int
    sent_ns: int
    incarnation: str = ""


class Probe(msgspec.Struct, frozen=True, tag="probe"):
    """Ask for a calibration measurement (edge_agent.probe). `kind`: busy, step, real step, grain, grain step, upload,
    download, reference, task.

    `host` and `port` name the probe server of a link probe; `size` is bytes over all connections; `period_s` is the
    period of the device's CPU quota. `grain` does pieces of work of `seconds` of CPU time, `grain step` single training
    steps, `times` times. `task` does batches of an assignment on blank samples for `seconds`.
    """

    id: str
    kind: str
    seconds: float = 0.0
    host: str = ""
    port: int = 0
    size: int = 0
    connections: int = 1
    threads: int = 1
    period_s: float = 0.1
    times: int = 1
    assignment: Assignment | None = None


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """End the agent of that `incarnation`; without one, whichever agent of the device receives it."""

    why: str
    incarnation: str = ""


# ---- control, device -> orchestrator ---------------------------------------------------------------------------------


class Presence(msgspec.Struct, frozen=True, tag="presence"):
    """Retained: who the device is. The last will is the same message with `online=False`."""

    device: Text
    incarnation: Text  # new for every start of the agent
    online: bool
    protocol: int
    samples: int = 0
    labels: Samples = ()  # samples per class
    shard: Text = ""  # SHA-256 of the shard file
    host: Facts = {}  # versions, machine, kernel
    plugins: Facts = {}  # SHA-256 of the plug-ins that the agent uses, by name

    def __post_init__(self) -> None:
        check_names(self.incarnation)
        take_over(self, host=printed(self.host), plugins=printed(self.plugins))


class Status(msgspec.Struct, frozen=True, tag="status"):
    """Heartbeat. `progress` grows with every batch, chunk or phase; liveness depends on it, not on a fixed time."""

    device: Text
    incarnation: Text
    configured: int  # seq of the last Configure taken over
    task: Text
    phase: Text
    progress: int
    cpu_s: float  # CPU time of the agent since its start
    sent_ns: int  # device's monotonic clock
    phases: Annotated[
        tuple[Phase, ...], msgspec.Meta(max_length=1000)
    ] = ()  # closed phases the orchestrator has not acknowledged yet
    first_phase: int = 0  # running number of phases[0]
    board: Readings = ()  # since the last heartbeat; of boards only

    def __post_init__(self) -> None:
        check_names(self.task, self.phase, *(text for each in self.phases for text in (each.name, each.task)))


class PhasesSeen(msgspec.Struct, frozen=True, tag="phases_seen"):
    """Orchestrator -> device: phases up to (not including) running number `upto` are recorded."""

    incarnation: Text
    upto: int


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    device: Text
    seq: int
    sent_ns: int
    device_ns: int


class ProbeResult(msgspec.Struct, frozen=True, tag="probe_result"):
    """Outcome of a Probe: seconds on the wall, CPU seconds used, bytes moved, work units done; or an error. Of a busy
    thread: median and 95th percentile of its uninterrupted runs and of the gaps between them, in seconds. Of `grain`:
    wall and CPU seconds of the median piece. Of `task`: the process's CPU time in its pieces (`work`)."""

    device: Text
    id: Text
    wall_s: float = 0.0
    cpu_s: float = 0.0
    bytes: int = 0
    units: float = 0.0
    error: str = ""
    runs_s: Runs = ()
    gaps_s: Runs = ()
    work: Annotated[tuple[PieceTimes, ...], msgspec.Meta(max_length=16)] = ()

    def __post_init__(self) -> None:
        take_over(self, error=printable(self.error, MOST_TEXT))


# ---- control, both ways: transfers -----------------------------------------------------------------------------------


class Credit(msgspec.Struct, frozen=True, tag="credit"):
    """Receiver -> sender: `received` leading chunks of the transfer are here; up to `window` beyond may be on the way.
    `done` means delivered to the application: the end-to-end acknowledgement. `seen` echoes the number of a Mark
    (`edgebed.wire.frames`): what is missing below it was lost on the way, not delayed."""

    sender: Text
    receiver: Text
    transfer: Text
    received: int
    window: int
    done: bool = False
    seen: int = 0


class Refuse(msgspec.Struct, frozen=True, tag="refuse"):
    """Receiver -> sender: this transfer is not wanted (unknown task, too large, damaged, forgotten). Sender ->
    receiver: it was given up; drop what has arrived of it and take no more."""

    sender: Text
    receiver: Text
    transfer: Text
    why: str

    def __post_init__(self) -> None:
        take_over(self, why=printable(self.why, MOST_TEXT))


class Query(msgspec.Struct, frozen=True, tag="query"):
    """Sender -> receiver after a silence or reconnect: where are you? Answered with Credit or Refuse. `credited`:
    chunks that the receiver has credited; one that knows of fewer has forgotten the transfer, and refuses it."""

    sender: Text
    receiver: Text
    transfer: Text
    credited: int


Control = (
    Configure
    | Cancel
    | Ping
    | Probe
    | Shutdown
    | Presence
    | Status
    | PhasesSeen
    | Pong
    | ProbeResult
    | Credit
    | Refuse
    | Query
)


# ---- headers: what a transfer carries beside tensors -----------------------------------------------------------------


class Cost(msgspec.Struct, frozen=True, array_like=True):
    """What pieces of one kind cost on a reference (`edgebed.device.pieces`).

    `points`: sizes in ascending order, each with the CPU seconds of such a piece. `origin`: `recorded`, or `layers`,
    added up from what layers cost there. `spread`: factors of the cost at `pieces.SHARES` of the pieces, whose mean is
    1; empty: all cost the same. `lag`: correlation of one piece with the next."""

    points: tuple[tuple[float, float], ...]
    origin: str = "recorded"
    spread: tuple[float, ...] = ()
    lag: float = 0.0


class Task(msgspec.Struct, frozen=True, tag="task"):
    """Orchestrator -> device. Tensors: the weights of the assignment's half. `id` is unique over all runs."""

    id: str
    run: str
    round: int
    assignment: Assignment
    costs: dict[str, Cost] = {}  # by kind of piece, on the reference whose speed the device is to have; empty: its own
    index: float = 1.0  # CPU seconds of the reference for one of this device, for the kinds that `costs` lacks
    state: str | msgspec.UnsetType = msgspec.UNSET  # the task whose device state it has; unset: none, or a copy
    base: str | msgspec.UnsetType = msgspec.UNSET  # SHA-256 of the frozen weights; those that are not here came before


class Upload(msgspec.Struct, frozen=True, tag="upload"):
    """Device -> orchestrator, within the batches of a task. Tensors by stream: `features`, `labels`, `logits`."""

    device: str
    task: str
    batch: int
    samples: int


class Reply(msgspec.Struct, frozen=True, tag="reply"):
    """Orchestrator -> device: the answer to Upload `batch`. Tensors: `gradient` or `logits`."""

    task: str
    batch: int


class Report(msgspec.Struct, frozen=True):
    """What a device measured during a task. Seconds on its monotonic clock; bytes are payload on the wire."""

    samples: int
    batches: int
    loss: float
    compute_s: float  # forward, backward and step
    compute_cpu_s: float  # CPU time of the training thread in those
    throttled_s: float | None  # from the cgroup, where it is visible
    download_bytes: int
    download_s: float
    upload_bytes: int  # features so far; the update itself is measured by the receiver
    upload_s: float  # while anything was waiting to be sent or in flight
    blocked_s: float  # training stood still because the upload queue was full
    reply_s: float = 0.0  # training stood still for a reply
    encode_s: float = 0.0  # training stood still while features were turned into bytes
    notes: dict[str, float] = {}  # what the device half has to tell the method, e.g. the mask it chose (FedPMT)
    encode_cpu_s: float = 0.0  # CPU time of the training thread in that
    memory_mib: float = 0.0  # resident in memory at the end of the task; 0 where that cannot be seen
    delayed_s: float | None = None  # its threads were ready to run and did not, stops by the quota included
    cpu_s: float = 0.0  # CPU time of all threads up to the end of the last batch or request; 0: not counted
    pieces: int = 0  # batches, or requests, whose CPU time was counted
    pieces_in_quota: int = 0  # of these, those that used no more than one period of the CPU quota gives
    quota_s: float = 0.0  # CPU seconds that one period of the quota gives
    work: tuple[PieceTimes, ...] = ()
    reference_s: dict[str, float] = {}  # CPU seconds on the reference, by the origin of its costs; empty: none is kept
    late_s: float = 0.0  # by which the update came later than from a device of the reference's speed


class Update(msgspec.Struct, frozen=True, tag="update"):
    """Device -> orchestrator at the end of a task. Tensors: the trained weights, by stage name."""

    device: str
    task: str
    report: Report


class Failure(msgspec.Struct, frozen=True, tag="failure"):
    """Device -> orchestrator: the task could not be done; `why` names the cause. No tensors. `diverged`: because
    training gave values that are not finite. `trace`: the traceback of an unexpected error."""

    device: str
    task: str
    why: str
    diverged: bool = False
    trace: str = ""


Header = Task | Upload | Reply | Update | Failure

T = TypeVar("T")

_control_encoder = msgspec.msgpack.Encoder()
_control_decoder: msgspec.msgpack.Decoder[Control] = msgspec.msgpack.Decoder(Control)
_header_decoder: msgspec.msgpack.Decoder[Header] = msgspec.msgpack.Decoder(Header)


def encode(message: Control | Header) -> bytes:
    return _control_encoder.encode(message)


def decode_control(data: bytes | memoryview) -> Control:
    """Raises WireError for anything that is not a control message of this protocol."""
    return _decode(_control_decoder, data)


def decode_header(data: bytes | memoryview) -> Header:
    """Raises WireError for anything that is not a transfer header of this protocol."""
    return _decode(_header_decoder, data)


def _decode(decoder: msgspec.msgpack.Decoder[T], data: bytes | memoryview) -> T:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise WireError(f"not a message of this protocol: {printable(str(error))}") from None
