"""Work that fits a device: of several sizes of a model, the largest that does not hold the round up. Pure.

Shared by the methods that give slow devices less of the model (FedPMT, FedDrop, HeteroFL). A size is known by its cost,
relative to the full model: counted operations, until devices have shown what sizes really cost. A small part of a small
model takes far longer than its operations say, since much of a batch's time does not depend on its size; so seconds are
taken to be a + b · operations, with a and b fitted to what was measured **[ours]**.

The paper of FedPMT assigns widths to compute levels by hand (§V-B) and names no rule. Here **[ours]**: the bound of a
round is the time of the slowest device with the smallest size, or of the fastest device with the full model, whichever
is longer. Every device gets the largest size that keeps the bound; it may exceed it by up to a twentieth. Given a
deadline, that is the bound instead. Given `levels`, one per size, a device gets the largest size whose level its CPUs
reach, as a share of the fastest device's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from statistics import mean, median

import msgspec

from edgebed.errors import UsageError
from edgebed.methods.base import DeviceView, Outcome, Schedule
from edgebed.methods.parts.device_speed import moving_average, work_s
from edgebed.methods.parts.local_training import count_batches

ROUNDING = 1 + 1e-9
"""Tolerance, so that rounding errors do not give a device a smaller size."""

WORTH = 1.05
"""How far a device may go beyond the bound (not a deadline), rather than have a smaller size."""


class Fitted(msgspec.Struct, frozen=True):
    """The place of each device's size, the seconds of every size, and the bound that they keep. Until something was
    measured (`measured`), the unit of both is arbitrary."""

    sizes: dict[str, int]
    seconds: dict[str, list[float]]
    bound_s: float | None
    measured: bool

    def predicted_s(self) -> dict[str, float]:
        """Seconds of the sizes chosen; {} as long as nothing was measured."""
        return {name: self.seconds[name][size] for name, size in self.sizes.items()} if self.measured else {}


class Measured(msgspec.Struct):
    """What was measured of one device: CPU seconds (seconds × CPUs) per batch, as a moving average by place of the
    size."""

    cpu_s: dict[int, float] = {}
    last: int = -1  # the size it had last; that one speaks for the device
    byte_s: float = 0.0  # of its link, both ways, moving average


class Powers(msgspec.Struct):
    """What is known of the devices. Mutable plain data, saved with every checkpoint."""

    cpus: dict[str, float] = {}  # of every device met
    measured: dict[str, Measured] = {}

    def meet(self, devices: Sequence[DeviceView]) -> None:
        self.cpus |= {device.name: device.cpus for device in devices}

    def observe(self, outcomes: Sequence[Outcome], size: Callable[[Outcome], int], traffic: Sequence[int]) -> None:
        """Add a round's measurements. `size` is the place of the size that a device had; `traffic` as in `fit`."""
        for outcome in outcomes:
            report, device = outcome.report, outcome.device
            if report.batches > 0 and report.compute_s > 0 and device in self.cpus:
                known = self.measured.setdefault(device, Measured())
                seconds = work_s(report, self.cpus[device]) / report.batches * self.cpus[device]
                fresh = known.last < 0
                known.last = size(outcome)
                known.cpu_s[known.last] = moving_average(known.cpu_s.get(known.last), seconds)
                byte_s = outcome.communication_s / traffic[known.last]
                known.byte_s = moving_average(None if fresh else known.byte_s, byte_s)

    def shown_costs(self, costs: Sequence[float]) -> list[float]:
        """Costs of the sizes relative to the largest, as measured: a + b · cost over all devices and sizes, a and b not
        negative; `costs` as they are until two different sizes were measured."""
        points = [(costs[place], seconds) for each in self.measured.values() for place, seconds in each.cpu_s.items()]
        a, b = fit_line(points)
        whole = a + b * costs[-1]
        return [(a + b * cost) / whole for cost in costs] if whole > 0 else list(costs)

    def seconds(
        self, device: DeviceView, schedule: Schedule, costs: Sequence[float], traffic: Sequence[int]
    ) -> list[float]:
        """Seconds of a round at every size. A device that was not measured is taken to be as fast as its CPUs and rates
        say; while none was, the unit is arbitrary and the link does not count.

        Args:
            costs: as `shown_costs` gives them.
        """
        known = self.measured.get(device.name)
        everybody = [each.cpu_s[each.last] / costs[each.last] for each in self.measured.values()]
        if known is not None:
            byte_s, work = known.byte_s, known.cpu_s[known.last] / costs[known.last]
        else:
            byte_s = 8 / min(device.uplink_bit_s, device.downlink_bit_s) if everybody else 0.0
            work = median(everybody) if everybody else 1.0
        compute_s = count_batches(device.samples, schedule) * work / device.cpus
        return [sent * byte_s + cost * compute_s for cost, sent in zip(costs, traffic, strict=True)]


def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """a and b of y = a + b·x by least squares, neither negative; (0, 1) where all x are one."""
    if len({x for x, _ in points}) < 2:
        return 0.0, 1.0
    x, y = mean(x for x, _ in points), mean(y for _, y in points)
    b = max(0.0, sum((u - x) * (v - y) for u, v in points) / sum((u - x) ** 2 for u, _ in points))
    a = y - b * x
    # through the origin where the line would start below it
    return (a, b) if a >= 0 else (0.0, sum(u * v for u, v in points) / sum(u * u for u, _ in points))


def fit(
    devices: Sequence[DeviceView],
    schedule: Schedule,
    costs: Sequence[float],
    traffic: Sequence[int],
    powers: Powers,
    *,
    levels: Sequence[float] = (),
    deadline_s: float | None = None,
) -> Fitted:
    """A size for each device.

    Args:
        costs: of the sizes, relative to the full model; increasing, the last is the largest.
        traffic: bytes of each size in a round, both ways.
        levels: share of the fastest device's CPUs that each size asks for; () goes by seconds.
        deadline_s: seconds that a round may take; it counts once something was measured.
    """
    shown = powers.shown_costs(costs)
    seconds = {device.name: powers.seconds(device, schedule, shown, traffic) for device in devices}
    measured = bool(powers.measured)
    if levels:
        asked = asked_cpus(costs, levels, powers.cpus.values())
        sizes = {device.name: largest_within(device.cpus, asked) for device in devices}
        return Fitted(sizes, seconds, None, measured)
    bound = max(max(each[0] for each in seconds.values()), min(each[-1] for each in seconds.values()))
    limit = bound * WORTH
    if deadline_s is not None and measured:
        bound = limit = deadline_s
    return Fitted({name: largest_within(limit, each) for name, each in seconds.items()}, seconds, bound, measured)


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
    return max((place for place, need in enumerate(needs) if need <= bound * ROUNDING), default=0)


def checked_levels(levels: Sequence[float], sizes: int) -> tuple[float, ...]:
    """Raises UsageError unless there is one level per size, increasing."""
    if levels and (len(levels) != sizes or list(levels) != sorted(levels)):
        raise UsageError(f"levels {list(levels)} for {sizes} sizes", hint=f"give {sizes} increasing shares of 1")
    return tuple(levels)
