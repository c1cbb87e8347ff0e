from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from torch.nn import functional

from damped.shares import way
from edgebed.methods.base import Batch, Contribution, DeviceView, Plan, Schedule, device_half
from edgebed.methods.fedavg import FedAvg
from edgebed.methods.parts.local_training import DevicePart, Half
from edgebed.models.staged import StagedModel, Weights
from edgebed.wire.messages import Assignment

SMOOTHING = float((Path(__file__).parent / "smoothing.txt").read_text())


@device_half("damped", head=False)
def damped_half(model: StagedModel, assignment: Assignment, batches: Iterable[Batch]) -> Half:
    """The whole model with smoothed labels."""
    part = DevicePart(model, assignment)
    for x, y in batches:
        part.step(functional.cross_entropy(part.forward(x), y, label_smoothing=SMOOTHING), len(y))
    yield from ()
    return part.trained()


class Damped(FedAvg):
    name = "damped"

    class Options(FedAvg.Options, frozen=True, forbid_unknown_fields=True):
        share: float = 0.8

    def learning(self):
        return {"as": "damped", "share": self.options.share}

    def plan(self, round: int, devices: Sequence[DeviceView], schedule: Schedule) -> Plan:
        plan = super().plan(round, devices, schedule)
        own = {name: msgspec.structs.replace(each, objective="damped") for name, each in plan.assignments.items()}
        return msgspec.structs.replace(plan, assignments=own)

    def merge(self, weights: Weights, contributions: Sequence[Contribution]) -> Weights:
        return way(weights, super().merge(weights, contributions), self.options.share)
