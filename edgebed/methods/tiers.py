"""DTFL's dynamic tier scheduler: from measured seconds and link speeds to a cut per device. Pure.

methods.md §1.2; algorithm 1, lines 21-35, and eq. 5 of the DTFL paper. All seconds are as the orchestrator's clock
measures them, so a dilated fleet is planned in dilated seconds throughout.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

import msgspec

from edgebed.methods.base import CutCost, DeviceView, Outcome, Schedule
from edgebed.methods.speed import work_s

PAYLOAD_SHARE = 1448 / 1514
"""Bytes of payload per byte on the wire in a full TCP segment: what a declared rate is worth before it is measured."""


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
        """Call with the devices of every round that is planned: what they report is judged by their quota."""
        self.cpus |= {device.name: device.cpus for device in devices}

    def observe(self, outcomes: Sequence[Outcome], costs: Mapping[int, CutCost], ema: float) -> None:
        """Add a round's measurements; devices that are not among them keep their last estimate.

        The paper takes the round's time less its communication as compute time. The device measures its compute
        directly here, since the two overlap; turning features into bytes holds the training up and counts; CPU seconds
        ÷ CPUs count where they are more than the wall seconds (`speed.work_s`) **[ours]**.
        """
        for outcome in outcomes:
            device, cut, report = outcome.device, outcome.assignment.stages, outcome.report
            if report.batches > 0 and report.compute_s > 0:
                tiers = self.compute_s.setdefault(device, {})
                seconds = work_s(report, self.cpus.get(device))
                tiers[cut] = _ema(tiers.get(cut), seconds / report.batches, ema)
                self.last_cut[device] = cut
            if 0 < outcome.link_bytes_s < math.inf:
                self.link_bytes_s[device] = _ema(self.link_bytes_s.get(device), outcome.link_bytes_s, ema)
        factors = [
            outcome.server_s / (costs[outcome.assignment.stages].server_s * outcome.report.batches)
            for outcome in outcomes
            if outcome.server_s > 0 and outcome.report.batches > 0 and costs[outcome.assignment.stages].server_s > 0
        ]
        if factors:
            self.server_factor = _ema(self.server_factor, median(factors), ema)

    def batch_s(self, device: DeviceView, cost: CutCost, costs: Mapping[int, CutCost]) -> float:
        """T^c of one batch at `cost.cut`: the last tier's T̄ scaled by the ratio of reference seconds (line 26). A
        device never seen starts from its declared CPUs."""
        last = self.last_cut.get(device.name)
        if last is None:
            return cost.device_s / device.cpus
        return cost.device_s / costs[last].device_s * self.compute_s[device.name][last]

    def speed(self, device: DeviceView) -> float:
        """ν in bytes per second; the declared uplink, less headers, before the first measurement."""
        return self.link_bytes_s.get(device.name, device.uplink_bit_s / 8 * PAYLOAD_SHARE)


def schedule_tiers(
    devices: Sequence[DeviceView],
    costs: Mapping[int, CutCost],
    history: History,
    batches: Mapping[str, int],
    *,
    server_slots: int,
    overlap: bool,
) -> Choice:
    """The cut of each device (lines 30-33): T_max = max_k min_m T_k(m), then the largest m with T_k(m) <= T_max.

    `batches` is Ñ_k by device; `costs` holds the cuts to choose from. The server halves share `server_slots`
    **[ours]**: a first choice without contention says how much work each device leaves to the server, the second
    counts the waiting for it.
    """
    alone = _choose(devices, costs, history, batches, {}, server_slots, overlap)
    loads = {name: alone.estimates[name][cut].server_s for name, cut in alone.cuts.items()}
    return _choose(devices, costs, history, batches, loads, server_slots, overlap)


def count_batches(samples: int, schedule: Schedule) -> int:
    """Ñ: mini-batches of a round. A last batch of one sample joins the one before, as in `datasets.shard`."""
    per_epoch = math.ceil(samples / schedule.batch_size)
    if per_epoch > 1 and samples % schedule.batch_size == 1:
        per_epoch -= 1
    return (min(per_epoch, schedule.max_batches) if schedule.max_batches else per_epoch) * schedule.epochs


def round_s(
    compute_s: float, model_s: float, features_s: float, server_s: float, batches: int, *, overlap: bool
) -> float:
    """T_k(m) from the round's seconds of compute, of one model transfer, of all features, of the server half.

    Without overlap eq. 5: max{T^c + T^com, T^s + T^com} with T^com = 2 model transfers + features. With overlap the
    three run as a pipeline over the batches: the slowest sets the pace, the others stand out by one batch, and the
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


def _ema(before: float | None, value: float, factor: float) -> float:
    return value if before is None else (1 - factor) * before + factor * value
