"""How truly a piece of work takes its time: wall ÷ (CPU ÷ CPUs) after a rest, for the three grains.

EDGEBED_GRAIN_BACKENDS (local,docker), EDGEBED_GRAIN_CPUS (0.05,0.1,0.2,0.5,1) and EDGEBED_GRAIN_WAYS
(quota,period,pacing) measure a part. Every row is printed as soon as it is measured.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import uuid
from pathlib import Path
from typing import cast, get_args

import msgspec

from edgebed.limits.cpu_quota import PERIOD_US
from edgebed.wire.messages import Probe, ProbeResult
from orchestrator.experiment import Grain
from orchestrator.fleet.control.controller import FleetController
from orchestrator.fleet.spec.profile import Limits, load_fleet
from orchestrator.runs import session

BACKENDS, CPUS = "local,docker", "0.05,0.1,0.2,0.5,1"
WORK_S = (0.002, 0.010, 0.050)
TIMES = 5
PAIRS = 3
"""Measurements of training steps under the quota and free, in turn."""

DEVICE = "d"
HEAD = "cpus  grain   period     2 ms   10 ms   50 ms    step   share   run ms (p95)   gap ms (p95)   CPU per step"


def main() -> None:
    for backend in _chosen("BACKENDS", BACKENDS):
        print(f"  {backend}: wall ÷ ideal; share of the CPU over 2 s ÷ CPUs; CPU per step under the quota ÷ free")
        print(f"  {HEAD}", flush=True)
        asyncio.run(_measure(backend))


def _chosen(name: str, default: str) -> list[str]:
    return os.environ.get(f"EDGEBED_GRAIN_{name}", default).split(",")


async def _measure(backend: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "d.yaml").write_text("cpus: 1\nuplink_mbit_s: 100\ndownlink_mbit_s: 100\nmemory_mib: 1024\n")
        (folder / "fleet.yaml").write_text(f"name: one\ndevices: [{{profile: d.yaml, name: {DEVICE}}}]\n")
        async with session.standing_fleet(load_fleet(folder / "fleet.yaml"), backend=backend) as controller:
            for cpus in map(float, _chosen("CPUS", CPUS)):
                for way in _chosen("WAYS", ",".join(get_args(Grain))):
                    await _row(controller, cpus, cast(Grain, way))


async def _row(controller: FleetController, cpus: float, way: Grain) -> None:
    """One row of the table."""
    limits = msgspec.structs.replace(controller.limits[DEVICE], cpus=cpus).dilated(1.0, way)
    await _put_on(controller, limits, way)
    pieces = [await _probe(controller, limits, "grain", seconds) for seconds in WORK_S]
    pieces.append(await _probe(controller, limits, "grain step"))
    busy = await _probe(controller, limits, "busy", 2.0)
    efficiency = await _efficiency(controller, limits, way)
    truth = "".join(f"{each.wall_s * cpus / each.cpu_s:8.2f}" for each in pieces)
    share = busy.cpu_s / busy.wall_s / cpus
    print(
        f"  {cpus:<5g} {way:<7} {limits.period_us / 1000:5g} ms{truth}{share:8.3f}"
        f"   {_spread(busy.runs_s)} {_spread(busy.gaps_s)} {efficiency:10.2f}",
        flush=True,
    )


async def _put_on(controller: FleetController, limits: Limits, way: Grain) -> None:
    controller.grain, controller.limits[DEVICE] = way, limits
    await controller.put_on_limits(DEVICE, "reprofile")


async def _efficiency(controller: FleetController, limits: Limits, way: Grain) -> float:
    """CPU per training step under the quota ÷ free: the median of pairs that were measured one after the other."""
    free = msgspec.structs.replace(limits, cpus=1.5, period_us=PERIOD_US)
    ratios = []
    for _ in range(PAIRS):
        rates = []
        for each in (limits, free):
            await _put_on(controller, each, way)
            steps = await _probe(controller, each, "real step", 1.0)
            rates.append(steps.units / steps.cpu_s)
        ratios.append(rates[1] / rates[0])
    return statistics.median(ratios)


async def _probe(controller: FleetController, limits: Limits, kind: str, seconds: float = 0.0) -> ProbeResult:
    times = TIMES if limits.cpus * TIMES > seconds * 10 else 3
    probe = Probe(id=uuid.uuid4().hex, kind=kind, seconds=seconds, period_s=limits.period_us / 1e6, times=times)
    result = await controller.membership.probe(DEVICE, probe)
    if result.error:
        raise RuntimeError(result.error)
    return result


def _spread(spread: tuple[float, ...]) -> str:
    """Median and 95th percentile in milliseconds."""
    return f"{spread[0] * 1000:6.1f} ({spread[1] * 1000:5.1f})" if spread else "      –        "
