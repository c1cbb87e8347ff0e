"""SplitFed V1: one fixed cut; the gradient of the features comes back (Thapa et al. 2022, algorithm 1;
papers.md §1.4). Pure.

Per batch the device sends features and waits, the server goes forward and backward on that device's copy of the upper
stages, and the device goes backward with the returned gradient. Both sides are averaged each round. With one device
this is centralised training, to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
import torch

from edgebed.errors import UsageError
from edgebed.methods.base import Context, Contribution, DeviceView, Method, Plan, Schedule, ServerHalf, assign
from edgebed.methods.parts.aggregation import Aggregate, merge_by_name
from edgebed.methods.parts.local_training import UpperHalf
from edgebed.models.staged import Weights
from edgebed.models.trained_part import check_halves
from edgebed.wire.messages import Assignment


class SplitFed(Method):
    name = "splitfed"
    trains_part = True

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """`cut`: stages on the device; after md2 as in the DTFL paper."""

        cut: Annotated[int, msgspec.Meta(ge=1)] = 2
        aggregate: Aggregate = "samples"

    def setup(self, context: Context) -> None:
        super().setup(context)
        if self.options.cut >= len(context.model):
            raise UsageError(
                f"cut {self.options.cut} of a model with {len(context.model)} stages leaves the server none",
                hint=f"choose a cut in 1..{len(context.model) - 1}",
            )
        check_halves(context.model, [self.options.cut], head=False)

    def learning(self) -> dict[str, object]:
        """FedAvg's: a batch goes through the same layers, in two places."""
        return {"as": "fedavg", "aggregate": self.options.aggregate}

    def plan(self, round: int, devices: Sequence[DeviceView], schedule: Schedule) -> Plan:
        return Plan(
            {
                device.name: assign(
                    self.context,
                    device,
                    schedule,
                    round,
                    stages=self.options.cut,
                    objective="server",
                    uploads=("features", "weights"),
                )
                for device in devices
            }
        )

    def server_halves(
        self, weights: Weights, assignments: Mapping[str, Assignment], accelerator: torch.device
    ) -> list[ServerHalf]:
        return [
            UpperHalf(self.context.model, weights, each, accelerator, gradient=True) for each in assignments.values()
        ]

    def merge(self, weights: Weights, contributions: Sequence[Contribution]) -> Weights:
        return merge_by_name(weights, contributions, self.options.aggregate)
