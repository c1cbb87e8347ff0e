"""S²FL's eq. 1 against the figures that its table 3 prints: arithmetic, without a run.

A round of FedAvg or SFL draws 10 of 100 devices. Each has 500 samples (IID) and trains for one epoch. Eq. 1 gives its
elements, 2 |W_c| + 2 p q, and its seconds. The round takes as long as its slowest device. So elements × rounds must be
the printed bytes, which the paper truncates to millions of elements, and the mean over all draws × rounds must be the
printed seconds, but for the chance of the draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec

from edgebed.models.costs import ModelCosts, model_costs
from edgebed.models.staged import MODELS
from edgebed.wire.settings import LearningTask
from orchestrator.fleet.spec.profile import fleet_of
from orchestrator.papers.tables import Reproduction

SAMPLES, DRAWN = 500, 10
DEVICE_FLOPS, SERVER_FLOPS = 2e10, 5e10
"""Multiply-adds per second of the fastest device, whose profile has one CPU, and of the server."""

ELEMENT_BITS = 32
"""Rates are printed in elements per second; profiles have them in bits."""

WITHIN_SD = 2.0
"""Seconds agree if they differ by at most so many standard deviations of the sum over the rounds."""


class Work(msgspec.Struct, frozen=True):
    """One device's round: elements that it sends and receives, and multiply-adds of device and server side."""

    elements: int
    device: float
    server: float

    def seconds(self, cpus: float, uplink_bit_s: float) -> float:
        link_s = self.elements * ELEMENT_BITS / uplink_bit_s
        return link_s + self.device / (cpus * DEVICE_FLOPS) + self.server / SERVER_FLOPS


class Check(msgspec.Struct, frozen=True):
    """A printed figure beside ours. `sd`: standard deviation of ours, by the draws of devices."""

    method: str
    what: str
    rounds: int
    ours: float
    paper: float
    sd: float

    @property
    def agrees(self) -> bool:
        return self.ours == self.paper if not self.sd else abs(self.ours - self.paper) <= WITHIN_SD * self.sd


def check_eq1(table: Reproduction, path: Path) -> list[Check]:
    """Every figure of the table that has its number of rounds."""
    costs = model_costs(MODELS.create({"name": "vgg16"}), LearningTask((3, 32, 32), 10), 2)
    limits = [device.profile.limits for device in fleet_of(path, table.experiment["fleet"]).devices]
    found = []
    for method, cut in (("fedavg", len(costs.cuts)), ("sfl", costs.split_points[-1])):
        work, printed = work_of(costs, cut), table.figures[method]
        mean_s, sd_s = slowest([work.seconds(each.cpus, each.uplink_bit_s) for each in limits], DRAWN)
        for rounds, elements, seconds in zip(*(printed[key] for key in ("rounds", "elements", "seconds")), strict=True):
            count = int(rounds or 0)
            if elements is not None:
                ours = math.floor(count * DRAWN * work.elements / 1e6)
                found.append(Check(method, "million elements", count, ours, elements, 0.0))
            if seconds is not None:
                found.append(Check(method, "seconds", count, count * mean_s, seconds, math.sqrt(count) * sd_s))
    return found


def work_of(costs: ModelCosts, cut: int) -> Work:
    """Eq. 1 of a device with `cut` stages; backward counts twice forward. `costs` are of a batch of two samples."""
    parameters = sum(stage.parameters for stage in costs.stages[:cut])
    features = math.prod(costs.cuts[cut - 1].feature_shape) if cut < len(costs.cuts) else 0
    adds = [3 * SAMPLES * stage.forward_flops / (2 * costs.batch) for stage in costs.stages]
    return Work(2 * parameters + 2 * SAMPLES * features, sum(adds[:cut]), sum(adds[cut:]))


def slowest(seconds: Sequence[float], drawn: int) -> tuple[float, float]:
    """Mean and standard deviation of the longest of `drawn` devices, over all ways to draw them."""
    ordered, ways = sorted(seconds), math.comb(len(seconds), drawn)
    chances = [math.comb(number, drawn - 1) / ways for number in range(len(ordered))]
    mean = sum(chance * each for chance, each in zip(chances, ordered, strict=True))
    return mean, math.sqrt(sum(chance * (each - mean) ** 2 for chance, each in zip(chances, ordered, strict=True)))
