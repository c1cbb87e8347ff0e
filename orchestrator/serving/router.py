"""Carries requests up the tree: what a node forwards goes to its parent, answers are counted, lost nodes are named.

Stands in the round driver's place (`rounds.driver.Driver`). The devices' half is `edgebed.methods.parts.serving`: every
node has one task for the whole time. A node above the leaves is sent features as answers to its uploads; as many ahead
of its answers as keep its link busy, the rest wait here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import msgspec
from torch import Tensor

from edgebed.errors import EdgebedError, TransferError, TransferRefused, short
from edgebed.link.endpoint import ReceivedTransfer, TransferEndpoint
from edgebed.models.staged import Weights
from edgebed.wire.codecs import decode_tensors, encode_tensors
from edgebed.wire.messages import Cancel, Codec, Failure, Header, Reply, Task, Update, Upload
from orchestrator.records.types import (
    DeviceDone,
    DeviceOut,
    Fault,
    Hop,
    Record,
    ReplyDelivered,
    RequestsLost,
    Served,
    TaskDelivered,
    TaskSent,
    UpdateReceived,
    UploadReceived,
)
from orchestrator.rounds.bounds import MOST_TEXT
from orchestrator.rounds.event_loop import now_ns, now_s

AHEAD = 4
"""Requests sent to a node that it has not decided yet."""

ENDING_S = 20.0
"""How long nodes may take to end once every request is settled."""

END = encode_tensors({}, Codec())
"""The body of the reply that ends a node's task."""


class Post(msgspec.Struct, frozen=True):
    """What one node is given to do.

    Attributes:
        body: the encoded weights of its stages.
        parent: who takes what it forwards; None answers all.
        exit: the exit at which it answers.
        own: the numbers of the requests that arrive at it.
        offset_ns: its clock minus ours.
        most_bytes: of one of its uploads, encoded or decoded.
    """

    task: Task
    body: bytes | bytearray
    parent: str | None
    exit: int
    own: range
    offset_ns: int
    most_bytes: int


class _Waiting(msgspec.Struct):
    """A request that is on its way to a node, or on it."""

    request: int
    body: bytes | bytearray
    queued_ns: int
    delivered_ns: int = 0
    bytes: int = 0


class _Node:
    def __init__(self, name: str, post: Post) -> None:
        self.name, self.post = name, post
        self.ready, self.ended = asyncio.Event(), asyncio.Event()
        self.lost = ""
        self.heard_s = now_s()
        self.queue: deque[_Waiting] = deque()
        self.there: dict[int, _Waiting] = {}  # sent and not decided, by request
        self.sent = 0  # replies so far
        self.started_ns = 0
        self.jobs: set[asyncio.Task[None]] = set()


class Router:
    """Serves all requests of the leaves once.

    Args:
        posts: by node; children of a node name it as their parent.
        labels: of every request, by number.
        liveness_s: a node whose heartbeats stop for so long is lost.
        watch: told how many requests are answered and lost, after each.
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
        self._hops: dict[int, tuple[Hop, ...]] = {}  # of requests under way
        self._open = set(range(len(labels)))
        self._answered = 0
        self._settled = asyncio.Event()

    async def run(self) -> str:
        """Start every node, parents first; return when all requests are answered or lost, and why. Cancelling it
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
        """Its task goes out; a leaf's only when every node above can take what it forwards."""
        if node.post.own:
            await asyncio.gather(*(other.ready.wait() for other in self._nodes.values() if not other.post.own))
        node.started_ns = now_ns()
        self._record(TaskSent(node.started_ns, 0, node.name, node.post.task.id, len(node.post.body)))
        try:
            sent = await self._endpoint.send(node.name, node.post.task, node.post.body)
        except TransferError as error:
            self._lose(node, f"it took no task: {error}")
            return
        self._record(TaskDelivered(sent.done_ns, 0, node.name, node.post.task.id, sent.bytes))

    def _pump(self, node: _Node) -> None:
        """Send what waits for a node, as far ahead as it may be."""
        while node.queue and len(node.there) < AHEAD and node.ready.is_set() and not node.lost:
            waiting = node.queue.popleft()
            node.there[waiting.request] = waiting
            self._spawn(node, self._forward(node, waiting, node.sent))
            node.sent += 1

    async def _forward(self, node: _Node, waiting: _Waiting, batch: int) -> None:
        with contextlib.suppress(TransferError):  # the node is gone, and what it had is lost by that
            sent = await self._endpoint.send(node.name, Reply(node.post.task.id, batch), waiting.body)
            waiting.delivered_ns, waiting.bytes = sent.done_ns, sent.bytes
            self._record(ReplyDelivered(sent.done_ns, sent.first_ns, 0, node.name, batch, sent.bytes))

    async def _end(self) -> None:
        """Nodes above the leaves end when they are told; leaves by themselves."""
        rest = [node for node in self._nodes.values() if not node.lost]
        for node in rest:
            if not node.post.own:
                self._spawn(node, self._forward(node, _Waiting(-1, END, 0), node.sent))
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
                raise TransferRefused(f"an orchestrator takes no {type(header).__name__} from {peer}")

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
            case Update(_, task, report):
                times = (inbound.last_ns, inbound.first_ns)
                self._record(UpdateReceived(*times, 0, node.name, task, inbound.bytes, report))
                seconds = (now_ns() - node.started_ns) / 1e9
                self._record(DeviceDone(now_ns(), 0, node.name, seconds, report.upload_s, 0.0, 0.0))
                node.ended.set()
                self._forfeit(node, "it ended without a word on them")
            case Failure(_, _, why):
                self._lose(node, f"it failed: {short(why, MOST_TEXT)}")
            case _:
                pass

    def _uploaded(self, node: _Node, inbound: ReceivedTransfer) -> None:
        try:
            tensors = decode_tensors(inbound.body, max_bytes=node.post.most_bytes)
            self._take(node, inbound, tensors)
        except (EdgebedError, KeyError, IndexError, ValueError, TypeError, RuntimeError, OverflowError) as error:
            self._lose(node, f"its upload cannot be used: {type(error).__name__}: {short(str(error))}")
            return
        node.ready.set()
        self._pump(node)

    def _take(self, node: _Node, inbound: ReceivedTransfer, tensors: Weights) -> None:
        if "features" in tensors:
            self._onward(node, inbound, int(tensors["request"]), tensors["times"][0])
        elif "prediction" in tensors:
            for request, prediction, times in zip(
                tensors["request"].tolist(), tensors["prediction"].tolist(), tensors["times"], strict=True
            ):
                self._answer(node, request, prediction, times)

    def _onward(self, node: _Node, inbound: ReceivedTransfer, request: int, times: Tensor) -> None:
        """A request that the node passes on: to its parent's queue."""
        if request not in self._open:
            return
        hop = self._hop(node, request, times, inbound.bytes)
        self._hops[request] = (*self._hops.get(request, ()), hop)
        parent = self._nodes[node.post.parent] if node.post.parent is not None else None
        if parent is None or parent.lost:
            at = parent or node
            self._lose_requests(at.name, [request], at.lost or "it has no parent to forward to")
            return
        parent.queue.append(_Waiting(request, bytes(inbound.body), inbound.last_ns))
        self._pump(parent)

    def _answer(self, node: _Node, request: int, prediction: int, times: Tensor) -> None:
        if request not in self._open:
            return
        hops = (*self._hops.pop(request, ()), self._hop(node, request, times))
        self._record(Served(now_ns(), request, node.post.exit, prediction == self._labels[request], hops))
        self._answered += 1
        self._settle([request])

    def _hop(self, node: _Node, request: int, times: Tensor, up_bytes: int = 0) -> Hop:
        """The node's part in a request. ValueError for one that it never had."""
        arrived, began, done = (int(t) - node.post.offset_ns for t in times)
        if request in node.post.own:
            return Hop(node.name, arrived, arrived, began, done, 0, up_bytes)
        waiting = node.there.pop(request, None)
        if waiting is None:
            raise ValueError(f"request {request} was never sent to it")
        # The acknowledgement of a transfer may come after what the node made of it.
        delivered = min(waiting.delivered_ns or began, began)
        return Hop(node.name, waiting.queued_ns, delivered, began, done, waiting.bytes or len(waiting.body), up_bytes)

    def progress(self, device: str) -> None:
        self._heard(device)

    def heard(self, device: str, moved: bool, task: str, phase: str) -> None:
        self._heard(device)

    def _heard(self, device: str) -> None:
        if (node := self._nodes.get(device)) is not None:
            node.heard_s = now_s()

    # ---- losses ----

    def lost(self, device: str, why: str) -> None:
        """The node's work is gone: its agent died or restarted."""
        if (node := self._nodes.get(device)) is not None and not node.ended.is_set():
            self._lose(node, why)

    def _lose(self, node: _Node, why: str) -> None:
        """What the node had, and what will still come to it, nobody answers."""
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
                    self._lose(node, f"nothing was heard of it for {silent:.0f} s")

    # ---- small ----

    def _spawn(self, node: _Node, work: object) -> None:
        job: asyncio.Task[None] = asyncio.ensure_future(work)  # type: ignore[call-overload]
        node.jobs.add(job)
        job.add_done_callback(lambda done: self._job_ended(node, done))

    def _job_ended(self, node: _Node, job: asyncio.Task[None]) -> None:
        """A job must not die in silence: an error nobody foresaw costs the node its requests, and is recorded."""
        node.jobs.discard(job)
        if not job.cancelled() and (error := job.exception()) is not None:
            what = f"{type(error).__name__}: {error}"
            self._record(Fault(now_ns(), node.name, what))
            self._lose(node, what)
