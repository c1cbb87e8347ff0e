"""How much of this host the devices need for the reference whose time they keep: the CPU time of batches under each
device's own quota, all devices at once, beside what the reference takes for the same batches."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from statistics import fmean, quantiles

import msgspec

from edgebed.device.pieces import seconds
from edgebed.errors import CalibrationError
from edgebed.wire.messages import Assignment, Cost, Probe
from edgebed.wire.piece_times import PieceTimes
from orchestrator.calibration.probing import Prober, ask
from orchestrator.fleet.spec.profile import Limits
from orchestrator.fleet.spec.speed import Need

MEASURE_S = 3.0

KINDS = ("first batch", "batch")

ESTIMATE = 4
"""Batches that a device does at least, for the time that a slow one takes."""


class Yardstick(msgspec.Struct, frozen=True):
    """Work that the devices do to be measured, and what its pieces cost on the reference, by kind."""

    task: Assignment
    costs: dict[str, Cost]

    @property
    def batch_s(self) -> float:
        """CPU seconds of the reference for a batch."""
        return seconds(self.costs["batch"], self.task.batch_size)


def ratios(work: Sequence[PieceTimes], costs: Mapping[str, Cost]) -> list[float]:
    """CPU time ÷ the reference's, of each batch; also of the first one, which finds cold caches."""
    known = [(each, seconds(costs[each.kind], each.size)) for each in work if each.kind in costs and each.kind in KINDS]
    return [us / 1e6 / cost_s for each, cost_s in known for us in each.each_us if cost_s > 0 < us]


def needs(found: Mapping[str, Sequence[float]]) -> dict[str, Need]:
    """By device: the mean, and the 99th percentile. A device does few batches in the time, so the ratio of the two is
    that of the batches of all devices, each ÷ the mean of its device. `found`: `ratios` by device; none is empty."""
    means = {device: fmean(each) for device, each in found.items()}
    spread = [ratio / means[device] for device, each in found.items() for ratio in each]
    tail = quantiles(spread, n=100, method="inclusive")[-1] if len(spread) > 1 else 1.0
    return {device: Need(mean, mean * max(1.0, tail)) for device, mean in means.items()}


async def measure_needs(prober: Prober, limits: Mapping[str, Limits], yardstick: Yardstick) -> dict[str, Need]:
    """What every device needs. `limits`: in force, by device. Raises CalibrationError: a device could not measure
    it."""

    async def one(device: str) -> list[float]:
        probe = Probe(
            uuid.uuid4().hex,
            "task",
            seconds=MEASURE_S,
            threads=limits[device].threads,
            assignment=msgspec.structs.replace(yardstick.task, device=device),
        )
        longest_s = MEASURE_S + ESTIMATE * yardstick.batch_s / limits[device].cpus
        result = await ask(prober, device, probe, longest_s)
        if found := ratios(result.work, yardstick.costs):
            return found
        raise CalibrationError(
            f"{device} did not measure what it needs for the reference: {result.error or 'it did no batch'}",
            hint="see the agent's log in the fleet's folder; or use speed: host",
        )

    return needs(dict(zip(limits, await asyncio.gather(*map(one, limits)), strict=True)))
