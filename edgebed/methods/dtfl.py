"""DTFL: dynamic tiers, local-loss device halves, one server-side copy per device (Mohammadabadi et al. 2024). Pure.

methods.md §1: each device trains its lower stages against the auxiliary head of its cut and streams features; the
server trains that device's upper stages as they arrive; both are averaged. Tier m of M is one of the M deepest cuts
(table 11); the scheduler is `edgebed.methods.tiers`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
import torch

from edgebed.errors import RunError, UsageError
from edgebed.methods.base import (
    Context,
    Contribution,
    CutCost,
    DeviceView,
    Method,
    Outcome,
    Plan,
    Schedule,
    ServerHalf,
    assign,
)
from edgebed.methods.halves import UpperHalf
from edgebed.methods.merging import Aggregate, merge_by_name
from edgebed.methods.tiers import Choice, History, count_batches, schedule_tiers
from edgebed.models.staged import Weights
from edgebed.wire.messages import Assignment

KEPT_SHARE = 0.75
"""Of a device's memory, what the features that it keeps may take: the agent itself takes some 375 MiB with torch."""

Tier = Annotated[int, msgspec.Meta(ge=1)]


class Dtfl(Method):
    name = "dtfl"
    needs_costs = True
    variants = ({"overlap": False}, {"tier": 2})

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """`tiers` is M (a model with fewer cuts has fewer); `tier` puts every device in that tier; `ema` is the weight
        of the newest measurement. `overlap`: features go up while the device computes; false: after it has computed
        all of them, which is what the paper's eq. 5 counts, and the device keeps a round's features until then."""

        tiers: Tier = 7
        tier: Tier | None = None
        ema: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.5
        overlap: bool = True
        aggregate: Aggregate = "samples"

    def setup(self, context: Context) -> None:
        super().setup(context)
        self.history = History()
        self.cuts = tuple(context.model.cuts_with_head[-self.options.tiers :])
        if not self.cuts:
            raise UsageError("DTFL needs a model with an auxiliary head", cure="choose another: `edgebed models`")
        if self.options.tier is not None and self.options.tier > len(self.cuts):
            raise UsageError(
                f"tier {self.options.tier} of a model with {len(self.cuts)} tiers", cure=f"choose 1..{len(self.cuts)}"
            )

    def plan(self, round: int, devices: Sequence[DeviceView], schedule: Schedule) -> Plan:
        self.history.meet(devices)
        batches = {device.name: count_batches(device.samples, schedule) for device in devices}
        if not self.options.overlap:
            self._check_memory(devices, batches)
        choice = schedule_tiers(
            devices,
            self._candidates(),
            self.history,
            batches,
            server_slots=self.context.server_slots,
            overlap=self.options.overlap,
        )
        assignments = {
            device.name: assign(
                self.context,
                device,
                schedule,
                round,
                stages=choice.cuts[device.name],
                objective="head",
                uploads=("features", "weights"),
                hold=not self.options.overlap,
            )
            for device in devices
        }
        predicted = {name: choice.estimates[name][cut].total_s for name, cut in choice.cuts.items()}
        return Plan(assignments, predicted, self._notes(choice))

    def server_halves(
        self, weights: Weights, assignments: Mapping[str, Assignment], accelerator: torch.device
    ) -> list[ServerHalf]:
        return [UpperHalf(self.context.model, weights, each, accelerator) for each in assignments.values()]

    def merge(self, weights: Weights, contributions: Sequence[Contribution]) -> Weights:
        """Stages by device and server half alike; the head of a tier over the devices that trained it **[ours]**."""
        return merge_by_name(weights, contributions, self.options.aggregate)

    def observe(self, round: int, outcomes: Sequence[Outcome]) -> None:
        self.history.observe(outcomes, self.context.costs, self.options.ema)

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = msgspec.to_builtins(self.history, str_keys=True)
        return state

    def restore(self, state: Mapping[str, Any], tensors: Weights) -> None:
        self.history = msgspec.convert(state, History, strict=False)

    def _candidates(self) -> dict[int, CutCost]:
        """The cuts the scheduler may choose from; one where the tier is static."""
        tier = self.options.tier
        cuts = self.cuts if tier is None else self.cuts[tier - 1 : tier]
        missing = [cut for cut in cuts if cut not in self.context.costs]
        if missing:
            raise RunError(f"cuts {missing} were not profiled", cure="profile every cut before the first plan")
        return {cut: self.context.costs[cut] for cut in cuts}

    def _check_memory(self, devices: Sequence[DeviceView], batches: Mapping[str, int]) -> None:
        """Raises UsageError where a device cannot keep the features of a round at one of the tiers."""
        cut, most = max(
            ((cut, cost.feature_bytes) for cut, cost in self._candidates().items()), key=lambda each: each[1]
        )
        for device in devices:
            needed, memory = most * batches[device.name], device.memory_bytes
            if 0 < memory * KEPT_SHARE < needed:
                raise UsageError(
                    f"without overlap {device.name} keeps a round's features until it has computed: "
                    f"{batches[device.name]} batches × {most / 1e6:.4g} MB (after stage {cut}) = {needed / 1e6:.4g} "
                    f"MB, more than {KEPT_SHARE:.0%} of its {memory / 1e6:.4g} MB of memory",
                    cure=f"set memory_mib to {math.ceil(needed / KEPT_SHARE / 2**20)} at least in its profile, or take "
                    "fewer tiers (deep ones have small features), a smaller codec.dtype, or training.max_batches",
                )

    def _notes(self, choice: Choice) -> dict[str, object]:
        """For the records: tier per device, T_max, and per device and tier the seconds the scheduler compared."""
        tier_of = {cut: str(number) for number, cut in enumerate(self.cuts, 1)}
        return {
            "tiers": {name: int(tier_of[cut]) for name, cut in choice.cuts.items()},
            "t_max_s": choice.t_max_s,
            "server_factor": self.history.server_factor,
            "estimates_s": {
                name: {tier_of[cut]: each.total_s for cut, each in tiers.items()}
                for name, tiers in choice.estimates.items()
            },
        }
