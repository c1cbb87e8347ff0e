"""One device's work in a round: its state, and what goes from it to the next plan and to the records."""

from __future__ import annotations

import asyncio

import msgspec

from edgebed.limits.spec import Limits
from edgebed.link.peer import Sent
from edgebed.link.receiver import ReceivedTransfer
from edgebed.methods.base import Contribution, Method, Outcome
from edgebed.methods.parts.exchange import Origin
from edgebed.models.costs import size_bytes
from edgebed.models.staged import Weights
from edgebed.pacing import Earned
from edgebed.wire.messages import Task, Update, Upload
from orchestrator.clock import now_ns
from orchestrator.records.types import DeviceDone, UpdateReceived, UploadReceived
from orchestrator.rounds.bounds import Bounds
from orchestrator.rounds.device_states import sent_state
from orchestrator.rounds.lateness import Arrival, Lateness, TaskSeen, lateness
from orchestrator.rounds.machine import Leave


class DeviceWork:
    """One device's work in the round.

    Args:
        slots: uploads that may wait for its server half.
        agent: that of the device, when it is sent its task.
    """

    def __init__(self, task: Task, bounds: Bounds, slots: int, agent: str) -> None:
        self.task, self.bounds, self.agent = task, bounds, agent
        self.out = False
        self.left: Leave | None = None  # how and why the device is out
        self.gone = False  # its agent died or restarted, as the fleet knows
        self.slots = asyncio.Semaphore(slots)
        self.jobs: set[asyncio.Task[None]] = set()
        self.started_ns = self.update_ns = 0
        self.update: Update | None = None
        self.contribution: Contribution | None = None
        self.outcome: Outcome | None = None
        self.turn = asyncio.Lock()
        self.held_s = 0.0  # seconds that uploads waited for a slot
        self.uploads = 0  # number that have arrived, in the order of batches
        self.pending = 0  # uploads that the server half has not used yet
        self.upload_bytes = self.download_bytes = 0  # of uploads and task, on the wire
        self.download_s = 0.0
        self.update_first_ns = 0
        self.update_bytes = 0
        self.moved: float | None = None  # how far its update is from what it was sent (`aggregation.moved`)
        self.trace = ""  # of an unexpected error, on the device or in its server half
        self.sizes: dict[str, int] = {}  # bytes of the weights it was sent, by name
        self.body = 0  # bytes of those, encoded
        self.origin: Origin = "none"  # of its device state
        self.state_bytes = 0  # of the server's copy of it, where that was sent
        self.weights: Weights = {}  # its update, once checked
        self.extra: Weights = {}  # what the update holds beside them
        self.sent: Sent | None = None
        self.limits: Limits | None = None  # when it was sent its task
        self.arrivals: list[Arrival] = []  # of uploads that were decoded
        self.replies: dict[int, Sent] = {}

    def tensors(self, method: Method, weights: Weights) -> Weights:
        """What it is sent: the weights of its half, and the copy of its device state if that is wanted."""
        tensors = method.task_weights(weights, self.task.assignment)
        self.sizes = {name: value.nbytes for name, value in tensors.items()}
        self.origin, copy = sent_state(method, self.task.assignment.device, self.task.state or "")
        self.state_bytes = size_bytes(copy)
        return {**tensors, **copy}

    def arrived(self, inbound: ReceivedTransfer, acked_ns: int, tensors: Weights) -> Arrival:
        """A transfer of the device, once decoded."""
        return Arrival(inbound.first_ns, inbound.last_ns, acked_ns, inbound.bytes, size_bytes(tensors))

    def lateness(self, update: Arrival, earned: Earned | None, limits: Limits | None) -> Lateness | None:
        """Of its events, where it keeps a reference's time and the orchestrator knows its pieces."""
        if self.sent is None or earned is None or limits is None or not self.task.costs:
            return None
        if limits != self.limits:  # transfers were made at different rates
            return None
        if len(self.arrivals) != self.uploads:
            return None
        task, about = self.task, (self.sent, self.body, self.arrivals, self.replies, update)
        return lateness(TaskSeen(task.assignment, self.bounds.samples, task.costs, *about), earned, limits)


def outcome(device: str, work: DeviceWork, header: Update, server_s: float) -> Outcome:
    """The measurements for the next plan. The transfer of the update is timed here, from first to last chunk."""
    report = header.report
    update_s = (work.update_ns - work.update_first_ns) / 1e9
    sent = report.upload_bytes + work.update_bytes
    sending = max(0.0, report.upload_s - work.held_s) + update_s
    if sent < report.download_bytes and report.download_s > 0:
        sent, sending = report.download_bytes, report.download_s
    return Outcome(
        device=device,
        assignment=work.task.assignment,
        report=report,
        seconds=(now_ns() - work.started_ns) / 1e9,
        communication_s=work.download_s + report.upload_s + update_s,
        link_bytes_s=sent / sending if sending > 0 else 0.0,
        server_s=server_s,
    )


def upload_record(round: int, inbound: ReceivedTransfer, header: Upload) -> UploadReceived:
    return UploadReceived(inbound.last_ns, inbound.first_ns, round, inbound.peer, header.batch, inbound.bytes, now_ns())


def update_record(round: int, inbound: ReceivedTransfer, header: Update, *, each_piece: bool) -> UpdateReceived:
    """`each_piece`: with the time of every piece of work, and not only their sums."""
    report = header.report
    if report.work and not each_piece:
        sums = tuple(msgspec.structs.replace(pieces, each_us=()) for pieces in report.work)
        report = msgspec.structs.replace(report, work=sums)
    return UpdateReceived(inbound.last_ns, inbound.first_ns, round, inbound.peer, header.task, inbound.bytes, report)


def done_record(round: int, outcome: Outcome, work: DeviceWork, found: Lateness | None) -> DeviceDone:
    return DeviceDone(
        now_ns(),
        round,
        outcome.device,
        outcome.seconds,
        outcome.communication_s,
        outcome.link_bytes_s,
        outcome.server_s,
        work.held_s,
        None if found is None else found.late_s,
        None if found is None else found.early_s,
        work.moved,
        size_bytes(work.extra),
    )
