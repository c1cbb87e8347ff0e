"""How fast each device was: moving averages of measured seconds, tiers and step counts made from them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median

import msgspec

from edgebed.methods.base import DeviceView, Outcome
from edgebed.wire.messages import Report

NEWEST = 0.5
"""Weight of the newest measurement, as in DTFL's scheduler **[ours]**."""


def moving_average(before: float | None, value: float, newest: float = NEWEST) -> float:
    """The exponential moving average after one more value: `newest` is the weight of `value`; None: there was none."""
    return value if before is None else (1 - newest) * before + newest * value


def work_s(report: Report, cpus: float | None) -> float:
    """Seconds of a round's work (compute and encoding) at the speed that the quota allows in the long run: the wall
    seconds, or CPU seconds ÷ `cpus` if that is more.

    A quota refills while a device waits for its link or a reply, so the next batch runs at the speed of the host. By
    its wall seconds alone the device would look up to 1 / `cpus` times too fast. A software throttle pauses between
    batches, outside the measured wall seconds.

    Args:
        cpus: the quota in force during the round, after dilation, as `report`'s seconds are; None: not known.
    """
    wall_s = report.compute_s + report.encode_s
    return max(wall_s, (report.compute_cpu_s + report.encode_cpu_s) / cpus) if cpus else wall_s


class Speeds(msgspec.Struct):
    """Measured seconds by device; one that failed keeps its last. Mutable plain data, saved with every checkpoint."""

    round_s: dict[str, float] = {}  # its whole round
    batch_s: dict[str, float] = {}  # compute of one batch
    communication_s: dict[str, float] = {}  # of a round
    cpus: dict[str, float] = {}  # in force in the last round planned

    def meet(self, devices: Sequence[DeviceView]) -> None:
        """Call with the devices of every round that is planned."""
        self.cpus |= {device.name: device.cpus for device in devices}

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            report = outcome.report
            self.round_s[outcome.device] = moving_average(self.round_s.get(outcome.device), outcome.seconds)
            self.communication_s[outcome.device] = moving_average(
                self.communication_s.get(outcome.device), outcome.communication_s
            )
            if report.batches > 0:
                seconds = work_s(report, self.cpus.get(outcome.device))
                self.batch_s[outcome.device] = moving_average(
                    self.batch_s.get(outcome.device), seconds / report.batches
                )


def split_tiers(seconds: Mapping[str, float], count: int) -> list[list[str]]:
    """Devices in `count` tiers, the fastest first, of equal size but for one device more in the first ones; fewer tiers
    where there are not so many devices. Equally fast devices in the order of their names."""
    ordered = sorted(seconds, key=lambda device: (seconds[device], device))
    count = min(count, len(ordered))
    size, more = divmod(len(ordered), max(1, count))
    ends = [size * number + min(number, more) for number in range(count + 1)]
    return [ordered[start:end] for start, end in pairwise(ends)]


def steps_in_time(steps: Mapping[str, int], speeds: Speeds) -> dict[str, int]:
    """Of `steps` batches per device, as many as let it end with the median device: at least one, at most all.

    T_k = communication + steps · seconds per batch; a device slower than the median T does what fits **[ours]**. One
    that was never measured does all.
    """
    known = {d: n for d, n in steps.items() if speeds.batch_s.get(d, 0.0) > 0}
    if not known:
        return dict(steps)
    budget = median(speeds.communication_s[d] + n * speeds.batch_s[d] for d, n in known.items())
    # Bounded before it becomes a whole number: a reported batch of almost 0 s makes the quotient infinite.
    fitting = {
        d: int(min(n, max(1.0, (budget - speeds.communication_s[d]) / speeds.batch_s[d] + 1e-9)))
        for d, n in known.items()
    }
    return {d: fitting.get(d, n) for d, n in steps.items()}
