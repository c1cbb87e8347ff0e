"""FedBuff: asynchronous devices, and a buffer of K updates for each step of the server (Nguyen et al. 2022,
algorithm 1). Pure.

M_c devices work at any time, each as in FedAvg. One that ends is followed by an idle one at once. Of its update
Δ_i = w_before - w_after the buffer takes s(τ) Δ_i, s(τ) = 1 / √(1 + τ), where τ counts the server's steps since the
device began. With K updates in it, w ← w - η_g / K Σ s(τ) Δ_i, and the buffer is empty again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
import torch
from torch import Tensor

from edgebed.methods.base import Context, Contribution, DeviceView, Plan, Schedule
from edgebed.methods.fedavg import FedAvg
from edgebed.methods.parts.device_sampling import DRAWS
from edgebed.models.staged import Weights

Count = Annotated[int, msgspec.Meta(ge=1)]


class Memory(msgspec.Struct):
    """What FedBuff remembers beside the buffer."""

    steps: int = 0  # of the server: t
    updates: int = 0  # in the buffer: k
    at_work: int = 0  # devices: M_c


class FedBuff(FedAvg):
    """A round is the work of one device. **[ours]** where the paper leaves it open: a device that is lost counts for
    nothing, and another one follows. Batch norm's running statistics move from where the server's are, so that no
    variance falls below 0; its counters take the maximum.
    """

    name = "fedbuff"
    remembers = "memory"
    variants = ({"buffer": 3, "concurrency": 2, "lr": 0.5},)

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """`buffer`: K, updates for a step; `concurrency`: M_c, devices at work, all by default; `lr`: the server's."""

        buffer: Count = 10
        concurrency: Count | None = None
        lr: Annotated[float, msgspec.Meta(gt=0)] = 1.0

    options: Options

    def learning(self) -> str:
        return "what it merges follows from who ends first"

    def setup(self, context: Context) -> None:
        super().setup(context)
        self.memory = Memory()
        self.parameters = {name for name, _ in context.model.named_parameters()}
        self.buffer: Weights = {}  # Σ s(τ) Δ_i; of a counter its largest value

    def lanes(self, devices: Sequence[DeviceView]) -> dict[str, list[DeviceView]]:
        """One for each device at work; any idle device may be the next of each."""
        if not self.memory.at_work:
            self.memory.at_work = self.options.concurrency or len(self.context.devices or devices)
        return {f"slot {number}": list(devices) for number in range(1, self.memory.at_work + 1)}

    def draw(self, round: int, devices: Sequence[DeviceView], share: float, seed: int) -> list[DeviceView]:
        """One of the idle devices."""
        return DRAWS["random"](devices, 1 / len(devices), seed, round)

    def plan(self, round: int, devices: Sequence[DeviceView], schedule: Schedule) -> Plan:
        held: dict[str, Any] = {"options": {"step": self.memory.steps}}
        assignments = super().plan(round, devices, schedule).assignments
        return Plan({name: msgspec.structs.replace(each, **held) for name, each in assignments.items()})

    def merge(self, weights: Weights, contributions: Sequence[Contribution]) -> Weights:
        """`weights` are the newest: other devices may have changed them since this one began with its `base`."""
        for part in contributions:
            staleness = max(0, self.memory.steps - msgspec.convert(part.assignment.options["step"], int))
            scale = 1 / (1 + staleness) ** 0.5
            self.buffer = {name: self._added(name, weights[name], scale, part) for name in part.weights}
            self.memory.updates += 1
        if self.memory.updates < self.options.buffer:
            return weights
        merged = {name: self._stepped(name, w) if name in self.buffer else w for name, w in weights.items()}
        self.buffer, self.memory.updates = {}, 0
        self.memory.steps += 1
        return merged

    def _added(self, name: str, w: Tensor, scale: float, part: Contribution) -> Tensor:
        """What the buffer holds of a tensor with this update."""
        after = part.weights[name]
        if not w.is_floating_point():
            return torch.maximum(self.buffer.get(name, w), after)
        before = part.base[name] if name in self.parameters else w
        return self.buffer.get(name, torch.zeros_like(w)) + scale * (before - after)

    def _stepped(self, name: str, w: Tensor) -> Tensor:
        if not w.is_floating_point():
            return self.buffer[name]
        lr = self.options.lr if name in self.parameters else 1.0
        return w - lr / self.memory.updates * self.buffer[name]

    def tensors(self) -> Weights:
        return dict(self.buffer)

    def restore(self, state: Mapping[str, Any], tensors: Weights) -> None:
        super().restore(state, tensors)
        self.buffer = dict(tensors)
