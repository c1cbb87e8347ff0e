"""DTFL: dynamic tiers, local-loss device halves, one server-side copy per device (Mohammadabadi et al. 2024). Pure.

Each device trains its lower stages against the auxiliary head of its cut and sends features while it trains. The
server trains a copy of the upper stages for each device as the features arrive. Both are averaged (papers.md §1).
Tier m of M is one of the M deepest cuts (table 11). The file follows algorithm 1: the round (lines 1-20), then the tier
scheduler (lines 21-35 and eq. 5, papers.md §1.2). All seconds are those of the orchestrator's clock: a dilated fleet is
planned in dilated seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Annotated

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
from edgebed.methods.parts.aggregation import Aggregate, merge_by_name
from edgebed.methods.parts.device_speed import moving_average, work_s
from edgebed.methods.parts.local_training import UpperHalf, count_batches
from edgebed.models.staged import Weights
from edgebed.models.trained_part import check_halves
from edgebed.wire.frames import WIRE_SHARE
from edgebed.wire.messages import Assignment

KEPT_SHARE = 0.75
"""The part of a device's memory that kept features may fill: the agent with torch needs some 375 MiB itself."""

Tier = Annotated[int, msgspec.Meta(ge=1)]


class Dtfl(Method):
    name = "dtfl"
    trains_part = True
    remembers = "history"
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

    def learning(self) -> dict[str, object] | str:
        options = self.options
        if options.tier is None:
            return "its tiers follow measured times"
        return {"as": "dtfl", "tiers": options.tiers, "tier": options.tier, "aggregate": options.aggregate}

    def setup(self, context: Context) -> None:
        super().setup(context)
        self.history = History()
        self.cuts = tuple(context.model.cuts_with_head[-self.options.tiers :])
        if not self.cuts:
            raise UsageError("DTFL needs a model with an auxiliary head", hint="choose another: `edgebed models`")
        if self.options.tier is not None and self.options.tier > len(self.cuts):
            raise UsageError(
                f"tier {self.options.tier} of a model with {len(self.cuts)} tiers", hint=f"choose 1..{len(self.cuts)}"
            )
        check_halves(context.model, self.cuts, head=True)

    def plan(self, round: int, devices: Sequence[DeviceView], schedule: Schedule) -> Plan:
        """Line 2: a tier for each device; the device's own part of the round (lines 15-20) is the objective `head`."""
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
        """Lines 6-8, one server half per device."""
        return [UpperHalf(self.context.model, weights, each, accelerator) for each in assignments.values()]

    def merge(self, weights: Weights, contributions: Sequence[Contribution]) -> Weights:
        """Lines 9-13: device side and server side are averaged together, the head of a tier over the devices that
        trained it **[ours]**."""
        return merge_by_name(weights, contributions, self.options.aggregate)

    def observe(self, round: int, outcomes: Sequence[Outcome]) -> None:
        """Line 5: what was measured."""
        self.history.observe(outcomes, self.context.costs, self.options.ema)

    def _candidates(self) -> dict[int, CutCost]:
        """The cuts the scheduler may choose from; one where the tier is static."""
        tier = self.options.tier
        cuts = self.cuts if tier is None else self.cuts[tier - 1 : tier]
        missing = [cut for cut in cuts if cut not in self.context.costs]
        if missing:
            raise RunError(f"cuts {missing} were not profiled", hint="profile every cut before the first plan")
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
                    hint=f"set memory_mib to {math.ceil(needed / KEPT_SHARE / 2**20)} at least in its profile, or take "
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


# ---- the tier scheduler: algorithm 1, lines 21-35 ----


class Estimate(msgspec.Struct, frozen=True):
    """Predicted seconds of one device at one cut for a whole round."""

    cut: int
    compute_s: float  # T^c
    communication_s: float  # T^com
    server_s: float  # T^s, waiting for other devices' server halves included
    total_s: float  # T_k(m)


class Choice(msgspec.Struct, frozen=True):
    """What the scheduler decided: a cut per device, T_max, and every estimate it looked at."""

    cuts: dict[str, int]
    t_max_s: float
    estimates: dict[str, dict[int, Estimate]]


class History(msgspec.Struct):
    """What was measured so far. Mutable; plain data, so that it can be saved with a checkpoint.

    Compute seconds are kept per batch, so that a changed number of batches does not spoil the estimate **[ours]**.
    """

    compute_s: dict[str, dict[int, float]] = {}  # device -> cut -> T̄, EMA of seconds per batch
    last_cut: dict[str, int] = {}  # the cut whose T̄ stands for the device now
    link_bytes_s: dict[str, float] = {}  # ν
    server_factor: float = 1.0  # measured seconds of a server step ÷ profiled seconds
    cpus: dict[str, float] = {}  # in force in the last round planned

    def meet(self, devices: Sequence[DeviceView]) -> None:
        """Call with the devices of every round that is planned: `observe` needs their CPU quota."""
        self.cpus |= {device.name: device.cpus for device in devices}

    def observe(self, outcomes: Sequence[Outcome], costs: Mapping[int, CutCost], ema: float) -> None:
        """Add a round's measurements (lines 22 and 23); other devices keep their last estimate.

        The paper's compute time is the round's time less its communication. Here the two overlap, so the device
        measures its compute itself. Encoding features holds up the training and counts as compute. Where CPU seconds ÷
        CPUs are more than the wall seconds, they count (`device_speed.work_s`) **[ours]**.
        """
        for outcome in outcomes:
            device, cut, report = outcome.device, outcome.assignment.stages, outcome.report
            if report.batches > 0 and report.compute_s > 0:
                tiers = self.compute_s.setdefault(device, {})
                seconds = work_s(report, self.cpus.get(device))
                tiers[cut] = moving_average(tiers.get(cut), seconds / report.batches, ema)
                self.last_cut[device] = cut
            if 0 < outcome.link_bytes_s < math.inf:
                self.link_bytes_s[device] = moving_average(self.link_bytes_s.get(device), outcome.link_bytes_s, ema)
        factors = [
            outcome.server_s / (costs[outcome.assignment.stages].server_s * outcome.report.batches)
            for outcome in outcomes
            if outcome.server_s > 0 and outcome.report.batches > 0 and costs[outcome.assignment.stages].server_s > 0
        ]
        if factors:
            self.server_factor = moving_average(self.server_factor, median(factors), ema)

    def batch_s(self, device: DeviceView, cost: CutCost, costs: Mapping[int, CutCost]) -> float:
        """T^c of one batch at `cost.cut` (line 26): the last tier's T̄, scaled by the ratio of reference seconds. A
        device that was never measured starts from its declared CPUs."""
        last = self.last_cut.get(device.name)
        if last is None:
            return cost.device_s / device.cpus
        return cost.device_s / costs[last].device_s * self.compute_s[device.name][last]

    def speed(self, device: DeviceView) -> float:
        """ν in bytes per second; the declared uplink, less headers, before the first measurement."""
        return self.link_bytes_s.get(device.name, device.uplink_bit_s / 8 * WIRE_SHARE)


def _estimate(
    device: DeviceView,
    cost: CutCost,
    costs: Mapping[int, CutCost],
    history: History,
    batches: int,
    others: Sequence[float],
    slots: int,
    overlap: bool,
) -> Estimate:
    """T_k(m) of one device at one cut: communication (line 25), compute (26), server (27), the round (28)."""
    speed = history.speed(device)
    compute_s = history.batch_s(device, cost, costs) * batches
    model_s, features_s = cost.model_bytes / speed, cost.feature_bytes * batches / speed
    server_s = contended_s(cost.server_s * history.server_factor * batches, others, slots)
    total_s = round_s(compute_s, model_s, features_s, server_s, batches, overlap=overlap)
    return Estimate(cost.cut, compute_s, 2 * model_s + features_s, server_s, total_s)


def contended_s(work_s: float, others_s: Sequence[float], slots: int) -> float:
    """Seconds until `work_s` of server work is done beside the work of other devices on `slots` workers that take
    turns: while it runs, each other gets at most as much time as it does **[ours]**."""
    return max(work_s, (work_s + sum(min(work_s, other) for other in others_s)) / slots)


def round_s(
    compute_s: float, model_s: float, features_s: float, server_s: float, batches: int, *, overlap: bool
) -> float:
    """T_k(m) from the round's seconds of compute, of one model transfer, of all features, of the server half
    (line 28).

    Without overlap eq. 5: max{T^c + T^com, T^s + T^com} with T^com = 2 model transfers + features. With overlap the
    three run as a pipeline over the batches: the slowest sets the pace, and each of the others adds one batch. The
    model goes down before the first batch and up after the last **[ours]**.
    """
    if not overlap:
        return max(compute_s, server_s) + 2 * model_s + features_s
    first = 1 / max(1, batches)
    rest = 1 - first
    device_s = first * (compute_s + features_s) + rest * max(compute_s, features_s) + model_s
    upper_s = first * (compute_s + features_s + server_s) + rest * max(compute_s, features_s, server_s)
    return model_s + max(device_s, upper_s)


def _choose(
    devices: Sequence[DeviceView],
    costs: Mapping[int, CutCost],
    history: History,
    batches: Mapping[str, int],
    loads: Mapping[str, float],
    slots: int,
    overlap: bool,
) -> Choice:
    """T_max = max_k min_m T_k(m) (line 31), then for each device the largest m with T_k(m) <= T_max (line 33)."""
    estimates = {}
    for device in devices:
        others = [load for name, load in loads.items() if name != device.name]
        estimates[device.name] = {
            cut: _estimate(device, cost, costs, history, batches[device.name], others, slots, overlap)
            for cut, cost in costs.items()
        }
    t_max = max((min(e.total_s for e in tiers.values()) for tiers in estimates.values()), default=0.0)
    cuts = {
        name: max(cut for cut, estimate in tiers.items() if estimate.total_s <= t_max)
        for name, tiers in estimates.items()
    }
    return Choice(cuts, t_max, estimates)


def schedule_tiers(
    devices: Sequence[DeviceView],
    costs: Mapping[int, CutCost],
    history: History,
    batches: Mapping[str, int],
    *,
    server_slots: int,
    overlap: bool,
) -> Choice:
    """The cut of each device: the estimates (lines 24-30), then the choice (lines 31-35).

    `batches` is Ñ_k by device; `costs` holds the cuts to choose from. The server halves share `server_slots`
    **[ours]**: a first choice ignores contention and gives the server work of each device; the second choice includes
    the waiting for the server.
    """
    alone = _choose(devices, costs, history, batches, {}, server_slots, overlap)
    loads = {name: alone.estimates[name][cut].server_s for name, cut in alone.cuts.items()}
    return _choose(devices, costs, history, batches, loads, server_slots, overlap)
