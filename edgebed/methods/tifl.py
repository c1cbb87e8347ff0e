"""TiFL: devices in tiers by speed, each round from one tier (Chai et al. 2020, algorithm 2; papers.md §5). Pure.

The first rounds profile: all devices train and their seconds are measured. Then every round draws one tier, so that
fast devices do not wait for slow ones; tiers that are behind are drawn more often, and credits bound how often.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Annotated

import msgspec

from edgebed.methods.base import Context, DeviceView, Outcome, Plan, Schedule
from edgebed.methods.fedavg import FedAvg
from edgebed.methods.parts.aggregation import Aggregate
from edgebed.methods.parts.device_sampling import draw_share
from edgebed.methods.parts.device_speed import Speeds, split_tiers

Count = Annotated[int, msgspec.Meta(ge=1)]


class Memory(msgspec.Struct):
    """What TiFL remembers. Tiers are numbered from the fastest, 0."""

    speeds: Speeds = msgspec.field(default_factory=Speeds)
    rounds: int = 0  # with a result
    credits: list[int] = []  # left, by tier
    loss: dict[str, float] = {}  # last training loss by device
    chosen: int | None = None  # the tier of this round


class TiFL(FedAvg):
    """**[ours]** where the paper leaves it open or needs what a server does not have here: tiers are made anew every
    round from moving averages (the paper profiles again from time to time); a tier counts as behind by its devices'
    mean training loss, in every round (the paper looks now and then, at accuracy on the devices' own test data); a
    device without measurement is in the slowest tier; when all credits are spent, every tier gets its own again.
    """

    name = "tifl"
    remembers = "memory"
    variants = ({"tiers": 2, "credits": 1},)

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """`tiers`: how many; `profiling`: rounds over all devices at the start; `credits`: rounds that a tier may be
        drawn until the others have been drawn as often."""

        tiers: Count = 5
        profiling: Count = 1
        credits: Count = 5
        aggregate: Aggregate = "samples"

    def setup(self, context: Context) -> None:
        super().setup(context)
        self.memory = Memory()

    def draw(self, round: int, devices: Sequence[DeviceView], share: float, seed: int) -> list[DeviceView]:
        """All devices while profiling; then of one tier as many as a share of all devices would be."""
        memory = self.memory
        memory.chosen = None
        if memory.rounds < self.options.profiling:
            return draw_share(devices, 1.0, seed, round)
        tiers = self.tiers(devices)
        memory.chosen = self._choose(tiers, Random(f"{seed}/tier/{round}"))
        tier = tiers[memory.chosen]
        return draw_share(tier, min(1.0, share * len(devices) / len(tier)), seed, round)

    def tiers(self, devices: Sequence[DeviceView]) -> list[list[DeviceView]]:
        """Tiers of the devices that are present, the fastest first."""
        seconds = {device.name: self.memory.speeds.round_s.get(device.name, float("inf")) for device in devices}
        views = {device.name: device for device in devices}
        return [[views[name] for name in tier] for tier in split_tiers(seconds, self.options.tiers)]

    def _choose(self, tiers: Sequence[Sequence[DeviceView]], chance: Random) -> int:
        """A tier with credits left, at random by how far it is behind; it pays one credit."""
        credits = self.memory.credits
        credits += [self.options.credits] * (len(tiers) - len(credits))
        if not any(credits[: len(tiers)]):
            credits[:] = [self.options.credits] * len(credits)
        able = [number for number in range(len(tiers)) if credits[number]]
        weights = shares_by_rank([self._loss(tiers[number]) for number in able])
        chosen = chance.choices(able, weights)[0]
        credits[chosen] -= 1
        return chosen

    def _loss(self, tier: Sequence[DeviceView]) -> float:
        known = [self.memory.loss[device.name] for device in tier if device.name in self.memory.loss]
        return sum(known) / len(known) if known else float("inf")

    def plan(self, round: int, devices: Sequence[DeviceView], schedule: Schedule) -> Plan:
        plan = super().plan(round, devices, schedule)
        notes = {"tier": self.memory.chosen, "credits": list(self.memory.credits)}
        return msgspec.structs.replace(plan, notes=notes)

    def observe(self, round: int, outcomes: Sequence[Outcome]) -> None:
        self.memory.rounds += 1
        self.memory.speeds.observe(outcomes)
        self.memory.loss |= {outcome.device: outcome.report.loss for outcome in outcomes}


def shares_by_rank(losses: Sequence[float]) -> list[float]:
    """Probability of each of n tiers by its place when the one furthest behind comes first (ChangeProbs):
    (n − place) / (n(n+1)/2) for places 0 … n−1."""
    n = len(losses)
    order = sorted(range(n), key=lambda tier: (-losses[tier], tier))
    place = {tier: rank for rank, tier in enumerate(order)}
    return [(n - place[tier]) / (n * (n + 1) / 2) for tier in range(n)]
