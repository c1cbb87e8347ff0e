"""FedAT: tiers by speed, synchronous inside and asynchronous across (Chai et al. 2021, algorithm 2; papers.md §5).
Pure.

Every tier has a model of its own, the average of its devices as in FedAvg. Whenever a tier's round ends, the global
model is made anew from all tier models, w = Σ_m T_{M+1−m} / T · w_m, where T_m counts the tier's rounds so far and
T all: the m-th fastest tier gets the share of the updates of the m-th slowest, so that fast tiers do not outvote slow
ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from edgebed.methods.base import Context, Contribution, DeviceView, Outcome, Plan, Schedule
from edgebed.methods.fedavg import FedAvg
from edgebed.methods.parts.aggregation import Aggregate, average, merge_by_name
from edgebed.methods.parts.device_speed import Speeds, split_tiers
from edgebed.models.staged import Weights

Count = Annotated[int, msgspec.Meta(ge=1)]


class Memory(msgspec.Struct):
    """What FedAT remembers beside the tier models. Tiers are numbered from the fastest, 0."""

    speeds: Speeds = msgspec.field(default_factory=Speeds)
    profiled: int = 0  # rounds over all devices
    tier_of: dict[str, int] = {}
    updates: list[int] = []  # T_m


class FedAT(FedAvg):
    """**[ours]** where the paper leaves it open: the first rounds are synchronous over all devices and measure them;
    they count as one update of every tier, for otherwise the first update of the fast tiers would weigh nothing. A
    device that was not measured then is in the slowest tier; tiers stay as they are to the end of the run. With `mu`
    the devices train with FedProx's proximal term, the paper's local constraint.
    """

    name = "fedat"
    merges_models = True
    remembers = "memory"
    variants = ({"mu": 0.1, "tiers": 2, "profiling": 2},)

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """`tiers`: how many; `profiling`: synchronous rounds at the start; `mu`: weight of the proximal term."""

        tiers: Count = 5
        profiling: Count = 1
        mu: Annotated[float, msgspec.Meta(ge=0)] = 0.0
        aggregate: Aggregate = "samples"

    def setup(self, context: Context) -> None:
        super().setup(context)
        self.memory = Memory()
        self.models: list[Weights] = []  # by tier; none while profiling

    def lanes(self, devices: Sequence[DeviceView]) -> dict[str, list[DeviceView]]:
        """One lane while profiling, then one for each tier."""
        if not self.models:
            return super().lanes(devices)
        lanes: dict[str, list[DeviceView]] = {f"tier {number}": [] for number in range(1, len(self.models) + 1)}
        for device in devices:
            lanes[f"tier {self._tier(device.name) + 1}"].append(device)
        return lanes

    def _tier(self, device: str) -> int:
        return self.memory.tier_of.get(device, len(self.models) - 1)

    def plan(self, round: int, devices: Sequence[DeviceView], schedule: Schedule) -> Plan:
        """All devices train the whole current global model, not the model of their tier."""
        assignments = super().plan(round, devices, schedule).assignments
        if self.options.mu:
            held: dict[str, Any] = {"objective": "prox", "options": {"mu": self.options.mu}}
            assignments = {name: msgspec.structs.replace(each, **held) for name, each in assignments.items()}
        tiers = {device.name: self._tier(device.name) + 1 for device in devices} if self.models else {}
        return Plan(assignments, notes={"tiers": tiers, "updates": list(self.memory.updates)})

    def merge(self, weights: Weights, contributions: Sequence[Contribution]) -> Weights:
        """`weights` is the newest global model: other tiers may have merged since this round began."""
        if not self.models:
            self.common = merge_by_name(weights, contributions, self.options.aggregate)
            return self.common
        for number in range(len(self.models)):
            own = [part for part in contributions if self._tier(part.device) == number]
            if own:
                self.models[number] = merge_by_name(self.models[number], own, self.options.aggregate)
                self.memory.updates[number] += 1
        return average(weights, list(zip(opposite_shares(self.memory.updates), self.models, strict=True)))

    def observe(self, round: int, outcomes: Sequence[Outcome]) -> None:
        memory = self.memory
        memory.speeds.observe(outcomes)
        if not self.models:
            memory.profiled += 1
            if memory.profiled >= self.options.profiling:
                self._make_tiers()

    def _make_tiers(self) -> None:
        """The end of profiling: all tiers start from the common model."""
        tiers = split_tiers(self.memory.speeds.round_s, self.options.tiers)
        self.memory.tier_of = {device: number for number, tier in enumerate(tiers) for device in tier}
        self.memory.updates = [1] * len(tiers)
        self.models = [{name: value.clone() for name, value in self.common.items()} for _ in tiers]

    def tensors(self) -> Weights:
        return {f"{number}/{name}": w for number, model in enumerate(self.models) for name, w in model.items()}

    def restore(self, state: Mapping[str, Any], tensors: Weights) -> None:
        super().restore(state, tensors)
        self.models = [{} for _ in self.memory.updates]
        for key, value in tensors.items():
            number, name = key.split("/", 1)
            self.models[int(number)][name] = value


def opposite_shares(updates: Sequence[int]) -> list[float]:
    """The share of each tier in the global model, the fastest first: T_{M+1-m} / T."""
    return [count / sum(updates) for count in reversed(updates)]
