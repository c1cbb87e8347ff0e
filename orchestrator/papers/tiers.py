"""Table 2 of the DTFL paper on a real device: the time of every tier's device half at several CPU quotas.

Uses one device, no uploads within batches, and the same batches for every tier. The quota changes while the device
runs. Each repeat measures all tiers in turn, so that slow changes of a shared host affect all tiers alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

import msgspec

from edgebed.models.staged import StagedModel
from orchestrator.fleet.control.controller import FleetController
from orchestrator.fleet.spec.profile import ProfileSpec
from orchestrator.runs.one_task import OneTask, half, weights_of

PAPER_DEVICE = (1.00, 1.63, 2.16, 2.68, 3.30, 3.81)
PAPER_SERVER = (1.00, 0.82, 0.65, 0.51, 0.33, 0.20)
"""DTFL, table 2: ResNet-56, M = 6, relative to tier 1."""


def readings(cuts: Sequence[int]) -> list[Sequence[int]]:
    """The cuts of the tables to print. The paper's table 2 has six tiers of seven cuts and does not say which: table 11
    has the deepest six, its server row fits the first six (docs/evidence/limits.md). So seven cuts give both."""
    six = len(PAPER_DEVICE)
    return [cuts[:six], cuts[-six:]] if len(cuts) == six + 1 else [cuts]


class Measurement(msgspec.Struct, frozen=True):
    """Seconds per batch of one tier's device half at one quota, over the repeats."""

    quota: float
    tier: int
    cut: int
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


async def measure_tiers(
    controller: FleetController,
    model: StagedModel,
    spec: Mapping[str, object],
    *,
    cuts: Sequence[int],
    quotas: Sequence[float],
    batch_size: int,
    repeats: int,
    on_task: Callable[[float, int], None],
) -> list[Measurement]:
    """Measure seconds per batch for every quota and cut, on the first device of the fleet."""
    device, runner = controller.names[0], OneTask(controller)
    results = []
    for quota in quotas:
        await controller.change(device, _profile(controller, device, quota))
        times: dict[int, list[float]] = {cut: [] for cut in cuts}
        for repeat in range(-1, repeats):  # the first pass is a warm-up: new shapes, new memory
            for cut in cuts:
                on_task(quota, cut)
                report = await runner.run(device, half(device, model, spec, cut, batch_size), weights_of(model, cut))
                if repeat >= 0:
                    times[cut].append(report.compute_s / report.batches)
        results += [Measurement(quota, i + 1, cut, tuple(times[cut])) for i, cut in enumerate(cuts)]
    return results


def _profile(controller: FleetController, device: str, quota: float) -> ProfileSpec:
    profile = controller.profiles[device]
    limits = msgspec.structs.replace(profile.limits, cpus=quota * controller.dilation)
    return msgspec.structs.replace(profile, name=f"cpu{quota:g}", limits=limits)


def normalised(measurements: Sequence[Measurement]) -> dict[float, list[float]]:
    """For each quota, each tier's median time divided by tier 1's."""
    quotas = dict.fromkeys(m.quota for m in measurements)
    rows = {quota: [m for m in measurements if m.quota == quota] for quota in quotas}
    return {quota: [m.median / row[0].median for m in row] for quota, row in rows.items()}


def spread(table: Mapping[float, Sequence[float]]) -> list[tuple[float, float]]:
    """For each tier, mean and standard deviation over the quotas, as in the paper."""
    return [
        (statistics.mean(column), statistics.stdev(column) if len(column) > 1 else 0.0)
        for column in zip(*table.values(), strict=True)
    ]
