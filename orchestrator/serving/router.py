"""Routes requests up the tree: passes forwarded requests to the parent node, counts answers, reports lost nodes.

It is the `Driver` of all devices (`RunFleet.driven`), as a `RoundDriver` is in training.
`edgebed.methods.parts.serving` is the devices' part: every node has one task for the whole time. A node above the
leaves receives features as replies to its uploads. The router sends only as many ahead of the node's answers as keep
its link busy; the rest wait here.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import torch

from edgebed.errors import EdgebedError, TransferError, TransferRefused, printable
from edgebed.link.endpoint import ReceivedTransfer, TransferEndpoint
from edgebed.methods.parts.serving import LOT
from edgebed.models.staged import Weights
from edgebed.wire.codecs import decode_tensors, encode_tensors
from edgebed.wire.messages import Cancel, Failure, Header, Reply, Task, Update, Upload
from edgebed.wire.settings import Codec
from edgebed.wire.texts import MOST_TEXT
from orchestrator.clock import now_ns, now_s
from orchestrator.records.host_records import Hop, RequestsLost, Served
from orchestrator.records.types import (
    DeviceDone,
    DeviceOut,
    Fault,
    Record,
    ReplyDelivered,
    TaskDelivered,
    TaskSent,
    UpdateReceived,
    UploadReceived,
)
from orchestrator.rounds.bounds import values_fault

AHEAD = 4
"""Largest number of requests that were sent to a node and are not decided yet."""

PATIENCE = 20
"""Times `liveness_s` that a node with a heartbeat may take for one request, or to get ready."""

ENDING_S = 20.0
"""Seconds that nodes may take to end after every request is settled."""

END = encode_tensors({}, Codec())
"""The body of the reply that ends a node's task."""


class Post(msgspec.Struct, frozen=True):
    """What one node must do.

    Attributes:
        body: the encoded weights of its stages.
        parent: the node that takes what it forwards; None: it answers everything.
        exit: the exit at which it answers.
        own: the numbers of the requests that arrive at this node from outside.
        offset_ns: its clock minus the orchestrator's.
        most_bytes: largest size of one of its uploads, encoded or decoded.
    """

    task: Task
    body: bytes | bytearray
    parent: str | None
    exit: int
    own: range
    offset_ns: int
    most_bytes: int


class _Waiting(msgspec.Struct):
    """A request that is being sent to a node, or is at the node."""

    request: int
    body: bytes | bytearray
    queued_ns: int
    since_s: float
    delivered_ns: int = 0
    bytes: int = 0


class _Node:
    def __init__(self, name: str, post: Post) -> None:
        self.name, self.post = name, post
        self.ready, self.ended = asyncio.Event(), asyncio.Event()
        self.lost = ""
        self.heard_s = now_s()
        self.queue: deque[_Waiting] = deque()
        self.there: dict[int, _Waiting] = {}  # sent and not decided yet, by request
        self.decided: set[int] = set()
        self.moved_s = math.inf  # when its task or its last upload arrived
        self.sent = 0  # number of replies so far
        self.started_ns = 0
        self.jobs: set[asyncio.Task[None]] = set()


class Router:
    """Serves every request of the leaves once.

    Args:
        posts: by node; children of a node name it as their parent.
        labels: of every request, by number.
        liveness_s: a node without heartbeats for so many seconds is lost.
        watch: called with the numbers of answered and lost requests after each change.
    """

    def __init__(
        self,
        endpoint: TransferEndpoint,
        record: Callable[[Record], None],
        posts: Mapping[str, Post],
        labels: Sequence[int],
        *,
        liveness_s: float,
        watch: Callable[[int, int], None] = lambda answered, lost: None,
    ) -> None:
        self._endpoint, self._record, self._labels, self._watch = endpoint, record, labels, watch
        self._posts, self._liveness_s = posts, liveness_s
        self._nodes: dict[str, _Node] = {}
        self._hops: dict[int, tuple[Hop, ...]] = {}  # of requests that are not settled
        self._open = set(range(len(labels)))
        self._answered = 0
        self._settled = asyncio.Event()

    async def run(self) -> str:
        """Start every node, parents first. Return why it ended when all requests are answered or lost. Cancelling it
        cancels the nodes' tasks."""
        self._nodes = {name: _Node(name, post) for name, post in self._posts.items()}
        watchdog = asyncio.create_task(self._watch_silence())
        try:
            for node in self._nodes.values():
                self._spawn(node, self._start(node))
            await self._settled.wait()
            await self._end()
        except BaseException:
            self._cancel("serving was interrupted")
            raise
        finally:
            watchdog.cancel()
        self._cancel("serving is over")
        lost = len(self._labels) - self._answered
        return "all requests answered" if not lost else f"{lost} requests lost"

    # ---- one node ----

    async def _start(self, node: _Node) -> None:
        """Send the node's task. A leaf gets its task only when every node above it can take forwarded requests."""
        if node.post.own:
            await asyncio.gather(*(other.ready.wait() for other in self._nodes.values() if not other.post.own))
        node.started_ns = now_ns()
        self._record(TaskSent(node.started_ns, 0, node.name, node.post.task.id, len(node.post.body)))
        try:
            sent = await self._endpoint.send(node.name, node.post.task, node.post.body)
        except TransferError as error:
            self._lose(node, f"it refused its task: {error}")
            return
        node.moved_s = now_s()
        self._record(TaskDelivered(sent.done_ns, 0, node.name, node.post.task.id, sent.bytes))

    def _pump(self, node: _Node) -> None:
        """Send the node's waiting requests, as many as may be under way."""
        while node.queue and len(node.there) < AHEAD and node.ready.is_set() and not node.lost:
            waiting = node.queue.popleft()
            waiting.since_s = now_s()
            node.there[waiting.request] = waiting
            self._spawn(node, self._forward(node, waiting, node.sent))
            node.sent += 1

    async def _forward(self, node: _Node, waiting: _Waiting, batch: int) -> None:
        with contextlib.suppress(TransferError):  # the node is lost, and its requests with it
            sent = await self._endpoint.send(node.name, Reply(node.post.task.id, batch), waiting.body)
            waiting.delivered_ns, waiting.bytes = sent.done_ns, sent.bytes
            self._record(ReplyDelivered(sent.done_ns, sent.first_ns, 0, node.name, batch, sent.bytes))

    async def _end(self) -> None:
        """Tell the nodes above the leaves to end, and wait. Leaves end by themselves."""
        rest = [node for node in self._nodes.values() if not node.lost]
        for node in rest:
            if not node.post.own:
                self._spawn(node, self._forward(node, _Waiting(-1, END, 0, now_s()), node.sent))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ENDING_S):
                await asyncio.gather(*(node.ended.wait() for node in rest))

    def _cancel(self, why: str) -> None:
        for node in self._nodes.values():
            for job in tuple(node.jobs):
                job.cancel()
            if not node.ended.is_set() and not node.lost:
                self._record(DeviceOut(now_ns(), 0, node.name, "cancelled", why))
                self._endpoint.control(node.name, Cancel(node.post.task.id, why))
                self._endpoint.forget(node.name)

    # ---- what comes from nodes ----

    def admit(self, peer: str, header: Header, size: int) -> None:
        match header:
            case Upload(device, task) | Update(device, task) | Failure(device, task) if device == peer:
                node = self._nodes.get(device)
                if node is None or node.lost or node.ended.is_set() or node.post.task.id != task:
                    raise TransferRefused(f"task {task} of {device} is over")
                if size > node.post.most_bytes:
                    why = f"it sent {size} bytes; an upload of its exit has at most {node.post.most_bytes}"
                    self._lose(node, why)
                    raise TransferRefused(why)
            case _:
                raise TransferRefused(f"the orchestrator accepts no {type(header).__name__} from {peer}")

    async def deliver(self, inbound: ReceivedTransfer) -> None:
        node = self._nodes.get(inbound.peer)
        if node is None or node.lost:
            return
        node.heard_s = now_s()
        match inbound.header:
            case Upload() as header:
                self._record(
                    UploadReceived(inbound.last_ns, inbound.first_ns, 0, node.name, header.batch, inbound.bytes)
                )
                self._uploaded(node, inbound)
            case Update(_, _, report) if why := values_fault(report, (now_ns() - node.started_ns) / 1e9):
                self._lose(node, why)
            case Update(_, task, report):
                times = (inbound.last_ns, inbound.first_ns)
                self._record(UpdateReceived(*times, 0, node.name, task, inbound.bytes, report))
                seconds = (now_ns() - node.started_ns) / 1e9
                self._record(DeviceDone(now_ns(), 0, node.name, seconds, report.upload_s, 0.0, 0.0))
                node.ended.set()
                self._forfeit(node, "it ended without answering")
            case Failure(_, _, why):
                self._lose(node, f"it failed: {printable(why, MOST_TEXT)}")
            case _:
                pass

    def _uploaded(self, node: _Node, inbound: ReceivedTransfer) -> None:
        try:
            tensors = decode_tensors(inbound.body, max_bytes=node.post.most_bytes)
            self._take(node, inbound, tensors)
        except (EdgebedError, KeyError, IndexError, ValueError, TypeError, RuntimeError, OverflowError) as error:
            self._lose(node, f"its upload cannot be used: {type(error).__name__}: {printable(str(error))}")
            return
        node.ready.set()
        node.moved_s = now_s()
        self._pump(node)

    def _take(self, node: _Node, inbound: ReceivedTransfer, tensors: Weights) -> None:
        if "features" in tensors:
            ((request, times),) = self._decided(node, tensors)
            self._onward(node, inbound, request, times)
        elif "prediction" in tensors:
            decided = self._decided(node, tensors)
            for (request, times), prediction in zip(decided, _whole(tensors, "prediction", len(decided)), strict=True):
                self._answer(node, request, prediction, times)

    def _decided(self, node: _Node, tensors: Weights) -> list[tuple[int, list[int]]]:
        """The requests of an upload, each with its three times. Raises ValueError for what no node can have decided,
        or has decided before."""
        requests = _whole(tensors, "request", tensors["request"].numel())
        times = _whole(tensors, "times", len(requests), 3)
        for request in requests:
            if not 0 <= request < len(self._labels) or request in node.decided:
                raise ValueError(f"request {request} is none, or it sent it before")
            node.decided.add(request)
        return list(zip(requests, times, strict=True))

    def _onward(self, node: _Node, inbound: ReceivedTransfer, request: int, times: list[int]) -> None:
        """Put a request that the node forwards into its parent's queue."""
        if request not in self._open:
            return
        hop = self._hop(node, request, times, inbound.bytes)
        self._hops[request] = (*self._hops.get(request, ()), hop)
        parent = self._nodes[node.post.parent] if node.post.parent is not None else None
        if parent is None or parent.lost:
            at = parent or node
            self._lose_requests(at.name, [request], at.lost or "it has no parent to forward to")
            return
        parent.queue.append(_Waiting(request, bytes(inbound.body), inbound.last_ns, now_s()))
        self._pump(parent)

    def _answer(self, node: _Node, request: int, prediction: int, times: list[int]) -> None:
        if request not in self._open:
            return
        hop = self._hop(node, request, times)
        hops = (*self._hops.pop(request, ()), hop)
        self._record(Served(now_ns(), request, node.post.exit, prediction == self._labels[request], hops))
        self._answered += 1
        self._settle([request])

    def _hop(self, node: _Node, request: int, times: list[int], up_bytes: int = 0) -> Hop:
        """The node's part in a request. Raises ValueError if the node never had the request."""
        arrived, began, done = (at - node.post.offset_ns for at in times)
        if request in node.post.own:
            return Hop(node.name, arrived, arrived, began, done, 0, up_bytes)
        waiting = node.there.pop(request, None)
        if waiting is None:
            raise ValueError(f"request {request} was never sent to it")
        # The acknowledgement of a transfer may arrive after the node's answer.
        delivered = min(waiting.delivered_ns or began, began)
        return Hop(node.name, waiting.queued_ns, delivered, began, done, waiting.bytes or len(waiting.body), up_bytes)

    def progress(self, device: str) -> None:
        if (node := self._nodes.get(device)) is not None:
            node.heard_s = now_s()

    def heard(self, device: str, moved: bool, task: str, phase: str) -> None:
        self.progress(device)

    # ---- losses ----

    def lost(self, device: str, why: str) -> None:
        """The node's work is lost: its agent died or restarted."""
        if (node := self._nodes.get(device)) is not None and not node.ended.is_set():
            self._lose(node, why)

    def _lose(self, node: _Node, why: str) -> None:
        """Count the requests at the node, and those that are still to reach it, as lost."""
        if node.lost:
            return
        node.lost = why
        self._record(DeviceOut(now_ns(), 0, node.name, "lost", why))
        node.ready.set()
        self._endpoint.control(node.name, Cancel(node.post.task.id, why))
        self._forfeit(node, why)

    def _forfeit(self, node: _Node, why: str) -> None:
        had = [*node.there, *(waiting.request for waiting in node.queue)]
        own = [request for request in node.post.own if request in self._open and request not in self._hops]
        node.there.clear()
        node.queue.clear()
        self._lose_requests(node.name, [*own, *had], why)

    def _lose_requests(self, node: str, requests: Sequence[int], why: str) -> None:
        gone = [request for request in requests if request in self._open]
        if gone:
            self._record(RequestsLost(now_ns(), node, tuple(gone), why))
            self._settle(gone)

    def _settle(self, requests: Sequence[int]) -> None:
        self._open.difference_update(requests)
        self._watch(self._answered, len(self._labels) - len(self._open) - self._answered)
        if not self._open:
            self._settled.set()

    async def _watch_silence(self) -> None:
        while True:
            await asyncio.sleep(self._liveness_s / 4)
            for node in self._nodes.values():
                silent = now_s() - node.heard_s
                if silent > self._liveness_s and not node.lost and not node.ended.is_set():
                    self._lose(node, f"no heartbeat for {silent:.0f} s")
                elif not node.lost and not node.ended.is_set() and self._stands_still(node):
                    self._lose(node, f"it has decided no request for more than {self._patience_s(node):.0f} s")

    def _stands_still(self, node: _Node) -> bool:
        """Whether a request has been at the node for too long, or it was not ready in time."""
        if node.ready.is_set() and not node.post.own:
            since_s = min((waiting.since_s for waiting in node.there.values()), default=math.inf)
        else:
            since_s = node.moved_s
        return now_s() - since_s > self._patience_s(node)

    def _patience_s(self, node: _Node) -> float:
        """A leaf sends answers in lots, and its requests come by and by."""
        arrivals = node.post.task.assignment.arrivals
        lot_s = LOT / arrivals.rate if arrivals is not None and arrivals.rate else 0.0
        return PATIENCE * self._liveness_s + 3 * lot_s

    # ---- small ----

    def _spawn(self, node: _Node, work: object) -> None:
        job: asyncio.Task[None] = asyncio.ensure_future(work)  # type: ignore[call-overload]
        node.jobs.add(job)
        job.add_done_callback(lambda done: self._job_ended(node, done))

    def _job_ended(self, node: _Node, job: asyncio.Task[None]) -> None:
        """An unexpected error in a job must not stay unnoticed: it is recorded, and the node loses its requests."""
        node.jobs.discard(job)
        if not job.cancelled() and (error := job.exception()) is not None:
            what = f"{type(error).__name__}: {error}"
            self._record(Fault(now_ns(), node.name, what))
            self._lose(node, what)


def _whole(tensors: Weights, name: str, *shape: int) -> Any:
    """A tensor of whole numbers as nested lists. Raises ValueError for another kind or shape."""
    value = tensors[name]
    if value.dtype != torch.int64 or value.shape != shape:
        raise ValueError(f"{name} is {value.dtype} {tuple(value.shape)} instead of torch.int64 {shape}")
    return value.tolist()
