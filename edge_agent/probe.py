"""The device's side of calibration: it uses its CPU or its link as much as it can, and reports how much it got.

CPU time is counted over whole quota periods; a partial period would make an error of up to one quota.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable

import torch

from edge_agent.software_throttle import SoftwareThrottle, TokenBucket
from edge_agent.training import DeviceTrainer, TaskIO
from edgebed.datasets.shard import Shard, blank_shard
from edgebed.device.core import Cancelled
from edgebed.device.phases import PhaseLog
from edgebed.device.pieces import Pieces
from edgebed.errors import UsageError
from edgebed.link import link_probe
from edgebed.models.staged import MODELS
from edgebed.pacing import Pacer
from edgebed.wire.codecs import encode_tensors
from edgebed.wire.messages import Probe, ProbeResult, Task
from edgebed.wire.settings import Codec, LearningTask

GAP = 0.4
"""As a share of the quota's period. A busy thread that stops for longer was throttled; in shorter pauses other programs
run."""

LONGEST_GAP_S = 0.04

EDGE_WAIT = 3.5
"""Periods of the quota. A thread that is not throttled in that time is not limited by a quota."""

STOP_S = 0.001
"""A busy thread that does nothing for longer was stopped, by its quota or by another program."""

REST = 1.5
"""Periods of the quota to rest before a piece of work."""

KEPT = 64
"""Results of probes that are kept for repeated requests."""

Work = Callable[[], None]


class Probes:
    """Runs every probe once. A repeated request gets the same result, or nothing while the probe still runs."""

    def __init__(self, device: str, throttle: SoftwareThrottle, pacer: Pacer, phases: PhaseLog) -> None:
        self._device, self._throttle, self._pacer, self._phases = device, throttle, pacer, phases
        self._results: dict[str, ProbeResult | None] = {}

    async def answer(self, probe: Probe) -> ProbeResult | None:
        if probe.id not in self._results:
            self._results = dict(list(self._results.items())[-KEPT:])
            self._results[probe.id] = None
            self._phases.enter("probe", "")
            result = await asyncio.to_thread(run_probe, probe, self._device, self._throttle, self._pacer)
            self._phases.enter("waiting", "")
            self._results[probe.id] = result
        return self._results[probe.id]


def run_probe(probe: Probe, device: str, throttle: SoftwareThrottle, pacer: Pacer) -> ProbeResult:
    """Do one measurement; returns when it is done. Never raises: the result holds the error.

    `busy`, `step`, `real step` and `reference` keep `probe.threads` threads busy for `probe.seconds`; `grain` and
    `grain step` do pieces of work after rests; `task` does batches of `probe.assignment`; `upload` and `download` move
    `probe.size` bytes over `probe.connections` connections.
    """
    try:
        match probe.kind:
            case "busy" | "reference":
                return _cpu(probe, device, throttle, lambda: link_probe.unit_of_work)
            case "step":
                return _cpu(probe, device, throttle, training_step)
            case "real step":
                return _cpu(probe, device, throttle, real_step)
            case "grain" | "grain step":
                return _pieces(probe, device, throttle, pacer)
            case "task":
                return _task(probe, device, throttle)
            case "upload" | "download":
                return _link(probe, device, throttle)
            case other:
                raise UsageError(f"this agent knows no probe {other!r}")
    except Exception as error:
        return ProbeResult(device, probe.id, error=f"{type(error).__name__}: {error}")


# ---- CPU -------------------------------------------------------------------------------------------------------------


def training_step() -> Work:
    """A unit of work: forward, backward and step of a small convolution, about a millisecond."""
    layer = torch.nn.Conv2d(8, 8, 3, padding=1)
    x = torch.ones(4, 8, 16, 16)

    def step() -> None:
        gradients = torch.autograd.grad(layer(x).square().mean(), list(layer.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(layer.parameters(), gradients, strict=True):
                parameter.sub_(0.01 * gradient)

    return step


def _cpu(probe: Probe, device: str, throttle: SoftwareThrottle, make: Callable[[], Work]) -> ProbeResult:
    torch.set_num_threads(1)
    stop = threading.Event()
    others = [threading.Thread(target=_until, args=(stop, make(), throttle)) for _ in range(probe.threads - 1)]
    for thread in others:
        thread.start()
    try:
        stops = _Stops()
        wall_s, cpu_s, rate = _measure(make(), probe.seconds, probe.period_s, throttle, stops)
    finally:
        stop.set()
        for thread in others:
            thread.join()
    runs, gaps = stops.spread()
    return ProbeResult(device, probe.id, wall_s=wall_s, cpu_s=cpu_s, units=rate * cpu_s, runs_s=runs, gaps_s=gaps)


class _Stops:
    """Uninterrupted runs of a busy thread, and the gaps between them."""

    def __init__(self) -> None:
        self._runs, self._gaps = list[float](), list[float]()
        self._since = self._last = time.monotonic()

    def begin(self) -> None:
        self._since = self._last = time.monotonic()

    def note(self, now: float) -> None:
        """Called after each unit of work."""
        if now - self._last > STOP_S:
            self._runs.append(self._last - self._since)
            self._gaps.append(now - self._last)
            self._since = now
        self._last = now

    def spread(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Median and 95th percentile in seconds, of runs and of gaps; empty where nothing stopped the thread."""
        return _spread(self._runs), _spread(self._gaps)


def _spread(values: list[float]) -> tuple[float, ...]:
    ordered = sorted(values)
    return tuple(ordered[int(share * (len(ordered) - 1) + 0.5)] for share in (0.5, 0.95)) if ordered else ()


def _until(stop: threading.Event, work: Work, throttle: SoftwareThrottle) -> None:
    torch.set_num_threads(1)  # holds for this thread
    while not stop.is_set():
        work()
        throttle.pace()


def _measure(
    work: Work, seconds: float, period_s: float, throttle: SoftwareThrottle, stops: _Stops
) -> tuple[float, float, float]:
    """Wall and CPU seconds of the process over whole quota periods, and units of work per CPU second of this thread."""
    work()  # the first call sets things up and is not measured
    _spin_to_edge(period_s, throttle)
    wall, cpu, own, units = time.monotonic(), time.process_time(), time.thread_time(), 0
    stops.begin()
    while (now := time.monotonic()) - wall < seconds:
        stops.note(now)
        work()
        throttle.pace()
        units += 1
    rate = units / max(time.thread_time() - own, 1e-9)
    _spin_to_edge(period_s, throttle)
    return time.monotonic() - wall, time.process_time() - cpu, rate


def _spin_to_edge(period_s: float, throttle: SoftwareThrottle) -> None:
    """Keep busy until a quota period begins, or for EDGE_WAIT periods if there is no quota."""
    gap_s = min(LONGEST_GAP_S, GAP * period_s)
    start = last = time.monotonic()
    while last - start < EDGE_WAIT * period_s:
        link_probe.unit_of_work()
        throttle.pace()
        now = time.monotonic()
        if now - last > gap_s:
            return
        last = now


# ---- pieces of work --------------------------------------------------------------------------------------------------


def _pieces(probe: Probe, device: str, throttle: SoftwareThrottle, pacer: Pacer) -> ProbeResult:
    """Do pieces of work, each after a rest in which the quota is filled up, and hold the end of each as the agent holds
    an event. The piece with the median of wall ÷ CPU seconds counts."""
    torch.set_num_threads(1)
    work = _warm(real_step()) if probe.kind == "grain step" else lambda: _use(probe.seconds)
    pieces = [_piece(work, probe.period_s, throttle, pacer) for _ in range(max(1, probe.times))]
    wall_s, cpu_s = sorted(pieces, key=lambda piece: piece[0] / piece[1])[len(pieces) // 2]
    return ProbeResult(device, probe.id, wall_s=wall_s, cpu_s=cpu_s)


def _piece(work: Work, period_s: float, throttle: SoftwareThrottle, pacer: Pacer) -> tuple[float, float]:
    """Wall and CPU seconds from the beginning of the work to its visible end."""
    throttle.pace()
    time.sleep(REST * period_s)
    pacer.begin()
    wall, cpu = time.monotonic(), time.process_time()
    work()
    throttle.pace()
    pacer.hold(time.sleep)
    return time.monotonic() - wall, time.process_time() - cpu


def _warm(work: Work) -> Work:
    """The same work, done once: the first call sets things up and is not measured."""
    work()
    return work


LEAST_BATCHES = 2
"""Batches that a slow device does of `task`, though they take longer than they should."""


class _Batches(TaskIO):
    """The `TaskIO` of `task`: measures the pieces, and ends it in time."""

    def __init__(self, seconds: float, throttle: SoftwareThrottle) -> None:
        super().__init__()
        self.pieces, self.pace = Pieces(time.process_time, {}), throttle.pace  # type: ignore[method-assign]
        self._end, self._left = time.monotonic() + seconds, LEAST_BATCHES

    def done(self, kind: str, size: int) -> None:
        self.pieces.done(kind, size)

    def progress(self) -> None:
        self._left -= 1

    def check(self) -> None:
        if self._left <= 0 and time.monotonic() > self._end:
            raise Cancelled("the measurement is over")


def _task(probe: Probe, device: str, throttle: SoftwareThrottle) -> ProbeResult:
    """Batches of a task as the agent does them, on samples that are all alike."""
    task = probe.assignment
    if task is None:
        raise UsageError("a probe of the kind task needs an assignment")
    shard = Shard(*blank_shard(task.learns, task.batch_size), "")
    weights = encode_tensors(MODELS.create(task.model, "probe").build(task.learns).weights(), Codec())
    io = _Batches(probe.seconds, throttle)
    with contextlib.suppress(Cancelled):
        trainer = DeviceTrainer(shard, PhaseLog(time.monotonic_ns))
        trainer.run(Task("probe", "", 0, task), weights, io, probe.threads)
    return ProbeResult(device, probe.id, work=io.pieces.times())


def _use(cpu_s: float) -> None:
    """Use so many CPU seconds in this thread."""
    end = time.thread_time() + cpu_s
    while time.thread_time() < end:
        link_probe.unit_of_work()


def real_step() -> Work:
    """One training step of a small residual network on 32 pictures of 8 by 8 points, about 10 ms."""
    model = MODELS.create({"name": "resnet-tiny"}, "probe").build(LearningTask((1, 8, 8), 10))
    optimizer = torch.optim.Adam(model.parameters())
    x, y = torch.ones(32, 1, 8, 8), torch.zeros(32, dtype=torch.int64)

    def step() -> None:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


# ---- link ------------------------------------------------------------------------------------------------------------


def _link(probe: Probe, device: str, throttle: SoftwareThrottle) -> ProbeResult:
    sends = probe.kind == "upload"
    token = link_probe.token_of(probe.id)
    start, cpu = time.monotonic(), time.thread_time()
    sockets: list[socket.socket] = []
    try:
        for _ in range(probe.connections):
            sockets.append(socket.create_connection((probe.host, probe.port), timeout=link_probe.PATIENCE_S))
            link_probe.greet(sockets[-1], token, sends, probe.size, probe.connections)
        if sends:
            link_probe.send(sockets, probe.size, _waiting(throttle.uplink))
            wall_s, moved = time.monotonic() - start, probe.size
        else:
            wall_s, moved = link_probe.receive(sockets, probe.size, _waiting(throttle.downlink))
    finally:
        for connection in sockets:
            connection.close()
    return ProbeResult(device, probe.id, wall_s=wall_s, cpu_s=time.thread_time() - cpu, bytes=moved)


def _waiting(bucket: TokenBucket) -> link_probe.Wait | None:
    """The delay of the software throttle; None if the kernel limits the link."""
    return (lambda count: time.sleep(bucket.delay(count))) if bucket.limited else None
