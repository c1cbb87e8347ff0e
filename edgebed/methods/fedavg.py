"""FedAvg: every device trains the whole model and the server averages (McMahan et al. 2017; papers.md §1.4). Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from edgebed.methods.base import Contribution, DeviceView, Method, Plan, Schedule, assign
from edgebed.methods.parts.aggregation import Aggregate, merge_by_name
from edgebed.methods.parts.device_sampling import Draw
from edgebed.models.staged import Weights


class FedAvg(Method):
    name = "fedavg"
    trains_part = True

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """`draw`: a round's devices at random, or equally many of every compute level, as in FedPMT's experiments."""

        draw: Draw = "random"
        aggregate: Aggregate = "samples"

    def learning(self) -> dict[str, object] | str:
        if self.options.draw == "levels":
            return "its devices are drawn by their CPUs"
        return {"as": "fedavg", "aggregate": self.options.aggregate}

    def plan(self, round: int, devices: Sequence[DeviceView], schedule: Schedule) -> Plan:
        stages = len(self.context.model)
        return Plan(
            {
                device.name: assign(
                    self.context, device, schedule, round, stages=stages, objective="output", uploads=("weights",)
                )
                for device in devices
            }
        )

    def merge(self, weights: Weights, contributions: Sequence[Contribution]) -> Weights:
        return merge_by_name(weights, contributions, self.options.aggregate)
