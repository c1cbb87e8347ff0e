"""Compares requested with measured limits: runs a plan of probes on a running fleet and judges the results."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence

import msgspec
import psutil

from edgebed.limits.cpu_quota import PERIOD_US
from edgebed.link import link_probe
from edgebed.link.probe_server import ProbeServer
from edgebed.wire.messages import Probe, ProbeResult
from orchestrator.calibration import verdicts
from orchestrator.calibration.probing import Prober, ask, move
from orchestrator.calibration.verdicts import Context, Item
from orchestrator.fleet.base import Backend, Held
from orchestrator.fleet.host.cores import Disturbance, HostWatch, tick_s, usable_cores
from orchestrator.fleet.many_hosts import ManyHosts, ProbePeer
from orchestrator.fleet.mixed import MixedBackend
from orchestrator.fleet.spec.profile import Limits
from orchestrator.records.types import Calibrated

REFERENCE_S = 0.2

TRIES = 2
"""Tries of a row that was too fast or failed for another reason: one failure may be a hiccup of a shared host."""

SLOW_TRIES = 4
"""Tries of a row that was only too slow. A busy host can make a device slow, but never too fast."""

DISTURBED_S = 60.0
"""Seconds in which a slow row is tried again while the host pauses or its hypervisor takes CPU time away."""

QUIET_S = 15.0
"""Longest wait for a quiet host before a slow row is tried again."""

QUIET_SHARE = 0.25
"""Largest share of the host's CPU time in use for the host to count as quiet, while nothing is measured."""


async def quiet_host(limit_s: float = QUIET_S) -> None:
    """Return when the host has been quiet for a second (stolen time counts as use), or after `limit_s`. The caller must
    not measure anything meanwhile."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        times = await asyncio.to_thread(psutil.cpu_times_percent, interval=1.0)
        if times.idle + getattr(times, "iowait", 0.0) >= 100 * (1 - QUIET_SHARE):
            return


class Calibration(msgspec.Struct, frozen=True):
    rows: tuple[Calibrated, ...]
    passed: bool


async def calibrate(
    backend: Backend,
    limits: Mapping[str, Limits],
    prober: Prober,
    *,
    short: bool,
    ceilings: bool = False,
    on_row: Callable[[Calibrated], None],
    on_item: Callable[[float, float], None] = lambda share, left_s: None,
) -> Calibration:
    """Measure every device's CPU and link. A row that fails is measured again after waiting for a quiet host: once, or
    up to three times if it is only too slow, and longer while the host is disturbed.

    Args:
        limits: the limits in force, by device.
        short: True for the form of under 10 s before every run, False for the full one.
        ceilings: devices keep a reference's time, so their quotas may add up to more than the cores: all at once they
            may get less.
        on_row: called with each row as soon as it is measured.
        on_item: called before each item of the plan and at the end, with the share of the plan that is done and the
            estimated seconds left.
    """
    plan = verdicts.short_plan(len(limits)) if short else verdicts.full_plan()
    total = verdicts.estimate_s(plan, list(limits.values()))
    done, rows = 0.0, list[Calibrated]()
    async with far_ends(backend, limits) as peers:
        bench = Bench(backend, limits, prober, peers, ceilings=ceilings)
        for item in plan:
            on_item(done / total, total - done)
            for row in await bench.item(item):
                rows.append(row)
                on_row(row)
            done += verdicts.estimate_s([item], list(limits.values()))
    on_item(1.0, 0.0)
    return Calibration(tuple(rows), all(row.passed for row in rows if row.judged))


class Bench:
    """Measures the items of a plan on a fleet's devices, failed rows again."""

    def __init__(
        self,
        backend: Backend,
        limits: Mapping[str, Limits],
        prober: Prober,
        peers: Mapping[str, ProbePeer],
        *,
        ceilings: bool = False,
    ) -> None:
        self._backend, self._limits, self._prober, self._peers = backend, limits, prober, peers
        self._cores, self._tick_s = usable_cores(), tick_s() or verdicts.TICK_S
        self._ceilings = ceilings

    async def item(self, item: Item) -> list[Calibrated]:
        """All rows of one item. A row that failed and was measured again appears once for each try."""
        end = time.monotonic() + DISTURBED_S
        rows, meanwhile = await self._watched(item, list(self._limits))
        for done in itertools.count(1):
            failed = {row.device for row in rows if row.judged and not row.passed}
            slow = {row.device for row in rows if row.judged and verdicts.is_slow(row)}
            patient = done < SLOW_TRIES or (meanwhile.serious and time.monotonic() < end)
            retry = failed if done < TRIES else slow if patient else set()
            if not retry:
                break
            if slow:
                await quiet_host()
            # A row that was measured together with other devices is repeated together with the same devices.
            again, meanwhile = await self._watched(item, list(self._limits) if item.together else sorted(retry))
            rows = [verdicts.superseded(row, done) if row.device in retry and row.judged else row for row in rows]
            rows += [row for row in again if row.device in retry]
        return rows

    async def _watched(self, item: Item, devices: Sequence[str]) -> tuple[list[Calibrated], Disturbance]:
        """Rows of one item. The cause of a slow row includes what the host lost meanwhile."""
        with HostWatch() as host:
            rows = await self._devices(item, devices)
        lost = host.lost()
        if lost.serious:
            rows = [verdicts.excused(row, str(lost)) if verdicts.is_slow(row) else row for row in rows]
        return rows, lost

    async def _devices(self, item: Item, devices: Sequence[str]) -> list[Calibrated]:
        if item.together:
            return [row for rows in await asyncio.gather(*(self._one(item, d) for d in devices)) for row in rows]
        return [row for device in devices for row in await self._one(item, device)]

    async def _one(self, item: Item, device: str) -> list[Calibrated]:
        if self._limits[device].unlimited and item.kind not in verdicts.BOARD_ITEMS:
            return []
        match item.kind:
            case "busy" | "step":
                return await self._cpu(item, device)
            case "grain" | "grain step":
                return [await self._grain(item, device)]
            case "efficiency":
                return [await self._efficiency(item, device)]
        return [await self._link(item, device)]

    async def _cpu(self, item: Item, device: str) -> list[Calibrated]:
        limits = self._limits[device]
        seconds, context = verdicts.window_s(item, limits, self._tick_s), await self._context(device)
        probe = Probe(
            id=uuid.uuid4().hex,
            kind=item.kind,
            seconds=seconds,
            threads=verdicts.threads_for(limits, context.cores),
            period_s=limits.period_us / 1e6,
        )
        alone = not item.together
        before = await asyncio.to_thread(link_probe.units_per_cpu_s, REFERENCE_S) if alone else 0.0
        result = await ask(self._prober, device, probe, seconds)
        after = await asyncio.to_thread(link_probe.units_per_cpu_s, REFERENCE_S) if alone else 0.0
        context = await self._context(device)
        rows = [verdicts.judge_cpu(context, item, result)]
        if alone and item.kind == "busy":
            rows.append(verdicts.report_work(context, item, result, (before + after) / 2))
        return rows if limits.unlimited else rows + verdicts.report_stops(context, item, result)

    async def _grain(self, item: Item, device: str) -> Calibrated:
        limits = self._limits[device]
        times = verdicts.pieces(item, limits)
        probe = Probe(
            id=uuid.uuid4().hex, kind=item.kind, seconds=item.seconds, period_s=limits.period_us / 1e6, times=times
        )
        result = await ask(self._prober, device, probe, verdicts.estimate_s([item], [limits]))
        return verdicts.report_grain(await self._context(device), item, result)

    async def _efficiency(self, item: Item, device: str) -> Calibrated:
        """CPU per step under the quota and free, in turn, so that a host that drifts changes both alike."""
        limits = self._limits[device]
        free = msgspec.structs.replace(limits, cpus=1.0, period_us=PERIOD_US)
        pairs = []
        try:
            for _ in range(verdicts.PAIRS):
                under = await self._steps(item, device, limits)
                pairs.append((under, await self._steps(item, device, free)))
        finally:
            await self._backend.limit(device, limits)
        return verdicts.report_efficiency(await self._context(device), item, pairs)

    async def _steps(self, item: Item, device: str, limits: Limits) -> ProbeResult:
        """Training steps under other limits than the device's own."""
        await self._backend.limit(device, limits)
        seconds, period_s = verdicts.window_s(item, limits, self._tick_s), limits.period_us / 1e6
        probe = Probe(id=uuid.uuid4().hex, kind="real step", seconds=seconds, period_s=period_s)
        return await ask(self._prober, device, probe, seconds)

    async def _link(self, item: Item, device: str) -> Calibrated:
        limits = self._limits[device]
        rate = limits.uplink_bit_s if item.kind == "upload" else limits.downlink_bit_s
        size, host = item.bytes_for(rate), self._backend.host_of(device)
        moved = await move(
            self._prober, self._peers[device], device, host, item.kind, size, item.connections, size * 8 / rate
        )
        return verdicts.judge_link(await self._context(device), item, moved.seconds, moved.payload, moved.error)

    async def _context(self, device: str) -> Context:
        held: Held = await self._backend.held(device)
        cores = held.cores or self._cores
        return Context(device, self._limits[device], held, cores, time.monotonic_ns(), self._tick_s, self._ceilings)


@contextlib.asynccontextmanager
async def far_ends(backend: Backend, devices: Collection[str]) -> AsyncIterator[Mapping[str, ProbePeer]]:
    """By device. In this process they listen on this host's ends of the devices' links."""
    if isinstance(backend, MixedBackend):
        ends: dict[str, ProbePeer] = {}
        async with contextlib.AsyncExitStack() as stack:
            for each in dict.fromkeys(map(backend.of, devices)):
                names = [device for device in devices if backend.of(device) is each]
                ends |= await stack.enter_async_context(far_ends(each, names))
            yield ends
    elif isinstance(backend, ManyHosts):
        async with backend.far_ends() as theirs:
            yield theirs
    else:
        outside = {backend.host_of(device) for device in devices if not backend.pins(device)}
        async with ProbeServer((backend.host_of(device) for device in devices), outside) as server:
            yield dict.fromkeys(devices, server)
