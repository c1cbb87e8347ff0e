"""SCAFFOLD: control variates undo the drift of devices with different data (Karimireddy et al. 2020, algorithm 1,
option II). Pure.

A device trains y_i from x with the gradient g_i(y_i) - c_i + c. Then c_i⁺ = c_i - c + (x - y_i) / (K η), K its batches.
The server takes x ← x + η_g/|S| Σ (y_i - x) and c ← c + 1/N Σ (c_i⁺ - c_i). With all c zero this is FedAvg.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import msgspec
import torch

from edgebed.errors import RunError, UsageError
from edgebed.methods.base import Batch, Context, Contribution, DeviceView, Plan, Schedule, Stream, device_half
from edgebed.methods.fedavg import FedAvg
from edgebed.methods.parts.aggregation import merge_by_name
from edgebed.methods.parts.local_training import DevicePart, Half, count_batches
from edgebed.models.learning import loss_of
from edgebed.models.staged import GIVEN, StagedModel, Weights, with_prefix, without_prefix
from edgebed.wire.messages import Assignment, Report


@device_half("scaffold", head=False)
def scaffold_half(model: StagedModel, assignment: Assignment, batches: Iterable[Batch]) -> Half:
    """The whole model. c comes down as `given`, c_i is the device state; c_i⁺ goes up beside the weights."""
    part = DevicePart(model, assignment)
    y = dict(part.stages.named_parameters())
    x = {name: value.detach().clone() for name, value in y.items()}
    zeros = {name: torch.zeros_like(value) for name, value in y.items()}
    c, c_i = model.given or zeros, model.kept or zeros
    for samples, labels in batches:
        loss = loss_of(part.forward(samples), labels)
        # the gradient of the added term is c - c_i
        correction = torch.stack([((c[name] - c_i[name]) * y[name]).sum() for name in y]).sum()
        part.step(loss, len(labels), loss + correction)
    yield from ()
    c_plus = new_control(c_i, c, x, {name: value.detach() for name, value in y.items()}, part.batches, assignment)
    return msgspec.structs.replace(part.trained(), extra=c_plus, state=c_plus)


def new_control(c_i: Weights, c: Weights, x: Weights, y: Weights, k: int, assignment: Assignment) -> Weights:
    """c_i⁺ = c_i - c + (x - y) / (K η), of the parameters that c names."""
    k_lr = k * assignment.optimizer.lr
    return {name: c_i[name] - c[name] + (x[name] - y[name]) / k_lr for name in c}


class Scaffold(FedAvg):
    """**[ours]** where the paper leaves it open: a device sends c_i⁺ and not its difference from c_i, which is as long,
    so that the server has a copy of every c_i and sends it to a device that lost its own. The server could work c_i⁺
    out; it is sent, as in the paper, and must be what follows from y_i. Batch norm's running statistics are no
    parameters: they have no control variate and follow the average. N counts the devices of the fleet.
    """

    name = "scaffold"
    keeps_state = True
    trains_part = False  # its control variates are of all weights
    variants = ({"lr": 0.5},)

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """`lr`: the server's η_g. All devices count alike, as in the paper."""

        lr: Annotated[float, msgspec.Meta(gt=0)] = 1.0

    options: Options

    def check_schedule(self, schedule: Schedule) -> None:
        if schedule.optimizer.name != "sgd" or schedule.optimizer.momentum:
            raise UsageError(
                "scaffold needs plain SGD: only there (x - y) / (K lr) is the mean of a device's gradients",
                hint="set training.optimizer to {name: sgd, lr: 0.05}, without momentum",
            )

    def setup(self, context: Context) -> None:
        super().setup(context)
        stages = context.model.stages(0, len(context.model))
        self.c = {name: torch.zeros_like(value) for name, value in stages.named_parameters()}
        self.c_i: dict[str, Weights] = {}

    def plan(self, round: int, devices: Sequence[DeviceView], schedule: Schedule) -> Plan:
        assignments = super().plan(round, devices, schedule).assignments
        return Plan({name: msgspec.structs.replace(a, objective="scaffold") for name, a in assignments.items()})

    def task_weights(self, weights: Weights, assignment: Assignment) -> Weights:
        return {**super().task_weights(weights, assignment), **with_prefix(self.c, GIVEN)}

    def state_copy(self, device: str) -> Weights:
        return self.c_i.get(device, {})

    def extra(self, assignment: Assignment) -> dict[str, Stream]:
        return {name: Stream(tuple(value.shape), value.dtype) for name, value in self.c.items()}

    def decode_update(
        self, assignment: Assignment, report: Report, sent: Weights, update: Weights, extra: Weights
    ) -> Weights:
        c_i, k = self._c_i(assignment.device), count_batches(report.samples, assignment)
        for name, value in new_control(c_i, self.c, sent, update, k, assignment).items():
            if not torch.allclose(extra[name], value, rtol=1e-3, atol=1e-3 * float(value.abs().max())):
                raise RunError(f"the control variate of {name!r} does not follow from the weights that came with it")
        return update

    def _c_i(self, device: str) -> Weights:
        return self.c_i.get(device) or {name: torch.zeros_like(value) for name, value in self.c.items()}

    def merge(self, weights: Weights, contributions: Sequence[Contribution]) -> Weights:
        averaged = merge_by_name(weights, contributions, "uniform")
        moves = [(part.extra, self._c_i(part.device)) for part in contributions]
        self.c_i = {**self.c_i, **{part.device: part.extra for part in contributions}}
        n = max(len(self.context.devices), len(self.c_i))
        self.c = {
            name: c + torch.stack([after[name] - before[name] for after, before in moves]).sum(0) / n
            for name, c in self.c.items()
        }
        if self.options.lr == 1:
            return averaged
        return {**averaged, **{n: weights[n] + self.options.lr * (averaged[n] - weights[n]) for n in self.c}}

    def tensors(self) -> Weights:
        own = {f"c_i/{device}/{name}": value for device, c_i in self.c_i.items() for name, value in c_i.items()}
        return {**with_prefix(self.c, "c/"), **own}

    def restore(self, state: Mapping[str, Any], tensors: Weights) -> None:
        self.c, self.c_i = without_prefix(tensors, "c/"), {}
        for key, value in without_prefix(tensors, "c_i/").items():
            device, name = key.split("/")
            self.c_i.setdefault(device, {})[name] = value

    def __getstate__(self) -> dict[str, Any]:
        """The copies for the trainer's process need no c_i."""
        return {**vars(self), "c_i": {}}
