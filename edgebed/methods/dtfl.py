"""DTFL: dynamic tiers, local-loss device halves, one server-side copy per device (Mohammadabadi et al. 2024). Pure.

methods.md §1: each device trains its lower stages against the auxiliary head of its cut and streams features; the
server trains that device's upper stages as they arrive; both are averaged. Tier m of M is one of the M deepest cuts
(table 11); the scheduler is `edgebed.methods.tiers`.
"""

from __future__ import annotations

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

Tier = Annotated[int, msgspec.Meta(ge=1)]


class Dtfl(Method):
    name = "dtfl"
    needs_costs = True
    variants = ({"overlap": False}, {"tier": 2})

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """`tiers` is M (a model with fewer cuts has fewer); `tier` puts every device in that tier; `ema` is the weight
        of the newest measurement; `overlap` chooses the time model of a run that streams."""

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
        choice = schedule_tiers(
            devices,
            self._candidates(),
            self.history,
            {device.name: count_batches(device.samples, schedule) for device in devices},
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
