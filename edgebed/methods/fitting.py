"""Work that fits a device: of several sizes of a model, the largest that does not hold the round up. Pure.

Shared by the methods that give slow devices less of the model (FedPMT, FedDrop, HeteroFL). A size is known by its cost,
relative to the full model; a device by the CPU seconds that a batch of the full model takes it.

The paper of FedPMT assigns widths to compute levels by hand (§V-B) and names no rule. Here **[ours]**: nobody may take
longer than the slowest device with the smallest size, or the fastest with the full model, whichever is later; within
that, every device gets the largest size that fits. Given a deadline, that is the bound instead. Given `levels`, one per
size, a device gets the largest size whose level its CPUs reach, as a share of the fastest device's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from statistics import mean, median

import msgspec

from edgebed.errors import UsageError
from edgebed.methods.base import DeviceView, Outcome, Schedule
from edgebed.methods.speed import NEWEST
from edgebed.methods.tiers import count_batches

SLACK = 1 + 1e-9
"""Rounding must not cost a device its size."""


class Fitted(msgspec.Struct, frozen=True):
    """The place of each device's size, and the seconds of every size. `bound_s` is what they had to keep; both are in
    a unit of their own as long as nothing was measured (`measured`)."""

    sizes: dict[str, int]
    seconds: dict[str, list[float]]
    bound_s: float | None
    measured: bool

    def predicted_s(self) -> dict[str, float]:
        """Seconds of the sizes chosen; {} as long as nothing was measured."""
        return {name: self.seconds[name][size] for name, size in self.sizes.items()} if self.measured else {}


class Powers(msgspec.Struct):
    """What is known of the devices. Mutable plain data, saved with every checkpoint."""

    cpus: dict[str, float] = {}  # of every device met
    cpu_s: dict[str, float] = {}  # of a batch of the full model: measured seconds × CPUs, moving average
    communication_s: dict[str, float] = {}  # of a round

    def meet(self, devices: Sequence[DeviceView]) -> None:
        self.cpus |= {device.name: device.cpus for device in devices}

    def observe(self, outcomes: Sequence[Outcome], cost: Callable[[Outcome], float]) -> None:
        """Add a round's measurements. `cost` is that of the size a device had, relative to the full model."""
        for outcome in outcomes:
            report, device = outcome.report, outcome.device
            if report.batches > 0 and report.compute_s > 0 and device in self.cpus:
                seconds = report.compute_s / report.batches / cost(outcome)
                _mix(self.cpu_s, device, seconds * self.cpus[device])
                _mix(self.communication_s, device, outcome.communication_s)

    def batch_s(self, device: DeviceView) -> float:
        """Seconds of a batch of the full model. A device that was not measured is taken to be as fast as its CPUs say;
        while none was, the unit is arbitrary."""
        work = self.cpu_s.get(device.name)
        if work is None:
            work = median(self.cpu_s.values()) if self.cpu_s else 1.0
        return work / device.cpus

    def round_s(self, device: DeviceView, schedule: Schedule, cost: float) -> float:
        """Seconds of a round at a size of this cost."""
        link = self.communication_s.get(device.name)
        if link is None:
            link = mean(self.communication_s.values()) if self.communication_s else 0.0
        return link + count_batches(device.samples, schedule) * cost * self.batch_s(device)


def _mix(means: dict[str, float], device: str, value: float) -> None:
    means[device] = (1 - NEWEST) * means[device] + NEWEST * value if device in means else value


def fit(
    devices: Sequence[DeviceView],
    schedule: Schedule,
    costs: Sequence[float],
    powers: Powers,
    *,
    levels: Sequence[float] = (),
    deadline_s: float | None = None,
) -> Fitted:
    """A size for each device.

    Args:
        costs: of the sizes, relative to the full model; increasing, the last is the largest.
        levels: share of the fastest device's CPUs that each size asks for; () goes by seconds.
        deadline_s: seconds that a round may take; it counts once something was measured.
    """
    seconds = {device.name: [powers.round_s(device, schedule, cost) for cost in costs] for device in devices}
    measured = bool(powers.cpu_s)
    if levels:
        asked = asked_cpus(costs, levels, powers.cpus.values())
        sizes = {device.name: largest_within(device.cpus, asked) for device in devices}
        return Fitted(sizes, seconds, None, measured)
    bound = max(max(each[0] for each in seconds.values()), min(each[-1] for each in seconds.values()))
    if deadline_s is not None and measured:
        bound = deadline_s
    return Fitted({name: largest_within(bound, each) for name, each in seconds.items()}, seconds, bound, measured)


def asked_cpus(costs: Sequence[float], levels: Sequence[float], fleet: Collection[float]) -> list[float]:
    """CPUs that each size asks of a device, by what all devices declare; a device gets the largest that it has.

    From the levels; without, so that the rule above is kept by devices whose seconds are cost / CPUs.

    Args:
        fleet: CPUs of all devices met, one at least.
    """
    if levels:
        return [level * max(fleet) for level in levels]
    bound = max(costs[0] / min(fleet), costs[-1] / max(fleet))
    return [cost / bound for cost in costs]


def largest_within(bound: float, needs: Sequence[float]) -> int:
    """The last place whose need is within the bound; the first where none is."""
    return max((place for place, need in enumerate(needs) if need <= bound * SLACK), default=0)


def checked_levels(levels: Sequence[float], sizes: int) -> tuple[float, ...]:
    """Raises UsageError unless there is one level per size, increasing."""
    if levels and (len(levels) != sizes or list(levels) != sorted(levels)):
        raise UsageError(f"levels {list(levels)} for {sizes} sizes", cure=f"give {sizes} increasing shares of 1")
    return tuple(levels)
