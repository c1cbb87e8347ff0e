"""FedProx: devices are held near the global model and may do less work (Li et al. 2020, algorithm 2;
papers.md §5). Pure.

Each device minimises F_k(w) + μ/2 ‖w − w^t‖². The proximal term is what lets the server merge work of different
amounts; the paper leaves the amount of a slow device to the system; here it follows from the measured speed **[ours]**.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

import msgspec
from torch import Tensor

from edgebed.methods.base import Batch, Context, DeviceView, Outcome, Plan, Schedule, device_half
from edgebed.methods.fedavg import FedAvg
from edgebed.methods.parts.aggregation import Aggregate
from edgebed.methods.parts.device_speed import Speeds, steps_in_time
from edgebed.methods.parts.local_training import DevicePart, Half, count_batches
from edgebed.models.learning import loss_of
from edgebed.models.staged import StagedModel
from edgebed.wire.messages import Assignment


@device_half("prox", head=False)
def prox_half(model: StagedModel, assignment: Assignment, batches: Iterable[Batch]) -> Half:
    """The whole model with the proximal term of `options["mu"]`; the reported loss is without it."""
    part = DevicePart(model, assignment)
    mu = msgspec.convert(assignment.options["mu"], float)
    start = [parameter.detach().clone() for parameter in part.stages.parameters()]
    for x, y in batches:
        loss = loss_of(part.forward(x), y)
        part.step(loss, len(y), loss + mu / 2 * _distance(part, start) if mu else loss)
    yield from ()
    return part.trained()


def _distance(part: DevicePart, start: Sequence[Tensor]) -> Tensor:
    """‖w − w^t‖² over the device's parameters."""
    squares = [(w - before).square().sum() for w, before in zip(part.stages.parameters(), start, strict=True)]
    total: Tensor = sum(squares[1:], squares[0])
    return total


class FedProx(FedAvg):
    name = "fedprox"
    remembers = "speeds"
    variants = ({"steps": "all"},)

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """`mu` weighs the proximal term; `steps`: `by_speed` gives a device that is slower than the median as many
        batches as let it end with it, `all` gives every device all."""

        mu: Annotated[float, msgspec.Meta(ge=0)] = 0.01
        steps: Literal["by_speed", "all"] = "by_speed"
        aggregate: Aggregate = "samples"

    def setup(self, context: Context) -> None:
        super().setup(context)
        self.speeds = Speeds()

    def plan(self, round: int, devices: Sequence[DeviceView], schedule: Schedule) -> Plan:
        whole = steps = {device.name: count_batches(device.samples, schedule) for device in devices}
        if self.options.steps == "by_speed":
            self.speeds.meet(devices)
            steps = steps_in_time(whole, self.speeds)
        return Plan(
            {
                name: msgspec.structs.replace(
                    each,
                    objective="prox",
                    steps=steps[name] if steps[name] < whole[name] else 0,
                    options={"mu": self.options.mu},
                )
                for name, each in super().plan(round, devices, schedule).assignments.items()
            },
            notes={"steps": dict(steps)},
        )

    def observe(self, round: int, outcomes: Sequence[Outcome]) -> None:
        if self.options.steps == "by_speed":
            self.speeds.observe(outcomes)
