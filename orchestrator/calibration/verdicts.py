"""What calibration measures, and how it judges the results. Pure."""

from __future__ import annotations

import math
import statistics
from typing import Literal

import msgspec

from edgebed.limits.cpu_quota import TICK_US
from edgebed.wire.frames import WIRE_SHARE
from edgebed.wire.messages import ProbeResult
from orchestrator.fleet.base import Held
from orchestrator.fleet.spec.profile import Limits
from orchestrator.records.types import Calibrated
from orchestrator.records.words.vocabulary import UNLIMITED

TOLERANCE = 0.05
"""Relative error allowed for CPU time and for transfers of 1 MB and more."""

SMALL_BYTES = 64_000
SMALL_TOLERANCE = 0.10
"""Relative error allowed for 64 KB. Such a transfer may be slow, because the CPU may be throttled in the middle of it.
But it must hardly be faster than the link."""

TICK_S = TICK_US / 1e6
"""A tick of most kernels (250 Hz), for estimates."""

WINDOW_TICKS = 20
EDGE_TICKS = 1.5
LONGEST_WINDOW_S = 20.0
SHORT_WINDOW_S = 15.0
"""A device may run on until the next tick of the kernel's accounting before its quota stops it, and pays that back
later. So CPU time in a window is known to about EDGE_TICKS. The window holds WINDOW_TICKS of CPU time, if that takes no
longer than LONGEST_WINDOW_S, or SHORT_WINDOW_S in the short calibration. In a shorter window more error is allowed."""

LINK_S = 1.2
LINK_S_PER_DEVICE = 0.012
"""Seconds in which all links of the short calibration are measured at once: the more there are, the later each
gets its turn."""

NAMES = {64_000: "64 KB", 1_000_000: "1 MB", 10_000_000: "10 MB"}
Kind = Literal["busy", "step", "grain", "grain step", "efficiency", "upload", "download"]


class Item(msgspec.Struct, frozen=True):
    """One measurement, of one device at a time or of all together. `size` is the total in bytes; 0: from the rate.
    `longest_s` limits the window of CPU time."""

    kind: Kind
    together: bool
    seconds: float = 0.0
    connections: int = 1
    size: int = 0
    longest_s: float = LONGEST_WINDOW_S

    @property
    def condition(self) -> str:
        words = ["all at once" if self.together else "alone"]
        if self.kind == "grain":
            words.append(f"{self.seconds * 1000:g} ms after a rest")
        if self.kind == "grain step":
            words.append("a training step after a rest")
        if self.kind in ("upload", "download"):
            words.append(f"{self.connections} connection{'s' if self.connections > 1 else ''}")
            words.append(NAMES.get(self.size, f"{self.seconds:g} s"))
        return ", ".join(words)

    def bytes_for(self, rate_bit_s: int) -> int:
        """Total bytes: `size`, or what the rate carries in `seconds`."""
        return self.size or max(SMALL_BYTES, int(rate_bit_s / 8 * WIRE_SHARE * self.seconds))


def full_plan() -> list[Item]:
    """The full calibration: CPU with a busy loop and with a training step, links with 1 and 8 connections and three
    sizes, each with one device alone and with all devices together."""
    cpu = [Item(kind, together, seconds=3.0) for kind in ("busy", "step") for together in (False, True)]
    cpu += [Item("grain", False, seconds=0.010), Item("grain", False, seconds=0.050), Item("grain step", False)]
    cpu += [Item("efficiency", False, seconds=1.0)]
    return cpu + [
        Item(kind, together, connections=connections, size=size)
        for kind in ("upload", "download")
        for together in (False, True)
        for connections in (1, 8)
        for size in NAMES
    ]


def short_plan(devices: int) -> list[Item]:
    """The short calibration before every run: CPU, grain and both directions, all devices together. It takes less than
    10 s for a few devices, and about 30 s for 200 of 0.004 CPU."""
    link_s = max(LINK_S, LINK_S_PER_DEVICE * devices)
    return [
        Item("busy", True, seconds=2.0, longest_s=SHORT_WINDOW_S),
        Item("grain", True, seconds=0.010),
        Item("upload", True, seconds=link_s),
        Item("download", True, seconds=link_s),
    ]


def window_s(item: Item, limits: Limits, tick_s: float) -> float:
    """Seconds for which CPU time is measured: the item's, or as many as a small quota needs for WINDOW_TICKS."""
    return max(item.seconds, min(item.longest_s, WINDOW_TICKS * tick_s / limits.cpus))


GRAIN_S = 1.5
"""Seconds in which pieces of work are repeated; there is always one."""

STEP_S = 0.010
"""About the CPU time of a real training step, for estimates."""

PAIRS = 3
"""Measurements of the CPU time per step under the quota and without it, in turn."""


def pieces(item: Item, limits: Limits) -> int:
    """How many pieces of work of `grain` fit into GRAIN_S, at most 5, at least one."""
    return max(1, min(5, int(GRAIN_S / _piece_s(item, limits))))


def _piece_s(item: Item, limits: Limits) -> float:
    """Seconds of a rest of 1.5 periods and a piece of work."""
    return 1.5 * limits.period_us / 1e6 + (item.seconds or STEP_S) / limits.cpus


def cpu_tolerance(cpu_s: float, tick_s: float) -> float:
    """Relative error allowed for a device that should use `cpu_s` seconds of CPU time in a window."""
    return max(TOLERANCE, EDGE_TICKS * tick_s / cpu_s)


def estimate_s(items: list[Item], limits: list[Limits]) -> float:
    """Estimated seconds that a plan takes on these devices."""
    total = 0.0
    for item in items:
        each = [_item_s(item, device) for device in limits]
        total += max(each) if item.together else sum(each)
    return total


def _item_s(item: Item, limits: Limits) -> float:
    if item.kind in ("busy", "step"):
        return window_s(item, limits, TICK_S) + 0.8
    if item.kind in ("grain", "grain step"):
        return pieces(item, limits) * _piece_s(item, limits)
    if item.kind == "efficiency":
        return 2 * PAIRS * (window_s(item, limits, TICK_S) + 0.8)
    rate = limits.uplink_bit_s if item.kind == "upload" else limits.downlink_bit_s
    return item.bytes_for(rate) * 8 / WIRE_SHARE / rate + 0.3


# ---- verdicts --------------------------------------------------------------------------------------------------------


class Context(msgspec.Struct, frozen=True):
    """What a verdict needs besides the measurement. `held`: the limits that the kernel reports. `ceilings`: all quotas
    may add up to more than the cores, so all at once they may not be used up."""

    device: str
    limits: Limits
    held: Held
    cores: float
    at_ns: int
    tick_s: float = TICK_S
    ceilings: bool = False


def threads_for(limits: Limits, cores: float) -> int:
    """Number of busy threads that can use up a quota, at most as many as the host can run."""
    return max(1, min(math.ceil(cores), math.ceil(limits.cpus)))


def judge_cpu(context: Context, item: Item, result: ProbeResult) -> Calibrated:
    """Compare CPU seconds per second with the quota. Of a real board it is only reported."""
    limits = context.limits
    measured = result.cpu_s / result.wall_s if result.wall_s > 0 else 0.0
    if limits.unlimited:
        return _row(context, f"cpu {item.kind}", item, 0.0, measured, "CPUs", False, True, result.error or UNLIMITED)
    wanted = min(limits.cpus, context.cores)
    error = measured / wanted - 1
    off = error if context.ceilings and item.together else abs(error)
    passed = off <= cpu_tolerance(max(item.seconds, result.wall_s) * wanted, context.tick_s)
    cause = "" if passed else cpu_cause(context, measured, wanted)
    return _row(context, f"cpu {item.kind}", item, wanted, measured, "CPUs", True, passed, result.error or cause)


def judge_link(context: Context, item: Item, seconds: float, payload: int, error: str = "") -> Calibrated:
    """Compare the goodput plus headers with the rate. Of a real board it is only reported."""
    up = item.kind == "upload"
    quantity = "uplink" if up else "downlink"
    wanted = (context.limits.uplink_bit_s if up else context.limits.downlink_bit_s) / 1e6
    if not error and (payload <= 0 or seconds <= 0):
        error = "everything had arrived before the clock could start; hint: use a quieter host"
    measured = payload * 8 / WIRE_SHARE / seconds / 1e6 if seconds > 0 else 0.0
    if context.limits.unlimited:
        return _row(context, quantity, item, 0.0, measured, "Mbit/s", False, True, error or UNLIMITED)
    off = measured / wanted - 1
    passed = not error and (off <= SMALL_TOLERANCE if item.size == SMALL_BYTES else abs(off) <= TOLERANCE)
    cause = "" if passed else error or link_cause(context, up, measured / wanted)
    return _row(context, quantity, item, wanted, measured, "Mbit/s", True, passed, cause)


def report_work(context: Context, item: Item, result: ProbeResult, reference: float) -> Calibrated:
    """Report the work per CPU second, compared with the same loop without limits on the host at the same time. It is
    not judged: on a host that others share, CPU seconds do not all do the same work."""
    measured = result.units / result.cpu_s if result.cpu_s > 0 else 0.0
    return _row(context, "work", item, reference, measured, "units/CPU s", False, True, "")


def report_grain(context: Context, item: Item, result: ProbeResult) -> Calibrated:
    """Wall seconds of a piece of work beside its CPU seconds ÷ CPUs. With a quota alone, work that fits into one
    period's quota takes no longer than on the host."""
    ideal = max(result.cpu_s / min(context.limits.cpus, context.cores), 1e-9)
    return _row(context, "grain", item, ideal, result.wall_s, "s", False, True, result.error)


def report_stops(context: Context, item: Item, result: ProbeResult) -> list[Calibrated]:
    """For how long a busy thread runs at a time, and the gaps between: medians beside the quota and the rest of the
    period, the 95th percentiles in the condition. Nothing where nothing stopped it."""
    quota_s = context.limits.cpus * context.limits.period_us / 1e6
    ideals = (("run", quota_s, result.runs_s), ("gap", context.limits.period_us / 1e6 - quota_s, result.gaps_s))
    rows = [
        (_row(context, name, item, ideal, spread[0], "s", False, True, ""), spread[1])
        for name, ideal, spread in ideals
        if len(spread) == 2 and ideal > 0
    ]
    return [msgspec.structs.replace(row, condition=f"{row.condition}, p95 {p95 * 1000:.3g} ms") for row, p95 in rows]


def report_efficiency(context: Context, item: Item, pairs: list[tuple[ProbeResult, ProbeResult]]) -> Calibrated:
    """CPU seconds per training step under the quota, beside the same without a quota, medians. A step that is stopped
    finds its caches cold when it goes on. It is reported and never changes a quota: it depends on kernel, network and
    neighbours."""
    under, free = (
        statistics.median(each.cpu_s / each.units if each.units > 0 else 0.0 for each in side)
        for side in zip(*pairs, strict=True)
    )
    return _row(context, "cpu per step", item, free, under, "CPU s", False, True, "")


BOARD_ITEMS = ("busy", "step", "upload", "download")
"""What is measured of a real board, which has no limits. The rest is about how a quota is held."""

UNHELD = "the agent does not keep its {} limit (software throttle); hint: run as root, so that the kernel does"


def is_slow(row: Calibrated) -> bool:
    """Whether a row failed only because it was slower than its limit."""
    return not row.passed and 0 < row.measured < row.requested


def excused(row: Calibrated, why: str) -> Calibrated:
    """The same row, with what the host did meanwhile added to its cause."""
    return msgspec.structs.replace(row, cause=f"{row.cause} ({why})" if row.cause else why)


def superseded(row: Calibrated, tries: int) -> Calibrated:
    """A row that failed at that try (counted from 1) and was measured again. It is kept but not judged."""
    return msgspec.structs.replace(row, condition=f"{row.condition}, try {tries}", judged=False)


def _row(
    context: Context, quantity: str, item: Item, wanted: float, measured: float, unit: str,
    judged: bool, passed: bool, cause: str,
) -> Calibrated:  # fmt: skip
    return Calibrated(
        at_ns=context.at_ns,
        device=context.device,
        quantity=quantity,
        condition=item.condition,
        requested=wanted,
        measured=measured,
        unit=unit,
        error=measured / wanted - 1 if wanted else 0.0,
        judged=judged,
        passed=passed,
        cause=cause,
    )


def cpu_cause(context: Context, measured: float, wanted: float) -> str:
    """Why the CPU time differs from the quota, with a hint."""
    held = context.held.cpus
    if measured > wanted:
        if not context.held.read_back:
            return UNHELD.format("CPU time")
        if held is None:
            return "no CPU quota is set; hint: set cpu.cfs_quota_us or cpu.max, shares are not enough"
        if abs(held / wanted - 1) > TOLERANCE:
            return f"the quota in force is {held:.3g} CPUs; hint: set the limits again"
        return f"a quota of {held:.3g} CPUs has no effect; hint: check whether the agent is in another cgroup"
    if held is not None and held < wanted * (1 - TOLERANCE):
        return f"the quota in force is {held:.3g} CPUs; hint: set the limits again"
    return "the host is too busy to give the quota; hint: end other programs, reserve more CPUs, or dilate more"


def link_cause(context: Context, up: bool, ratio: float) -> str:
    """Why a link differs from its rate, with a hint. `ratio` is measured over requested."""
    held = context.held.uplink_bit_s if up else context.held.downlink_bit_s
    other = context.held.downlink_bit_s if up else context.held.uplink_bit_s
    wanted = context.limits.uplink_bit_s if up else context.limits.downlink_bit_s
    name, opposite = ("uplink", "downlink") if up else ("downlink", "uplink")
    slow = f"the {name} is too slow; hint: use a quieter host, or find what else limits it (a bridge, a firewall)"
    if not context.held.read_back:
        return UNHELD.format(name) if ratio > 1 else slow
    if held is None and other is not None:
        return f"the {name} is not shaped, only the {opposite} is; hint: shape both ends' egress, or use ifb"
    if held is None:
        return f"nothing limits the {name}; hint: set the limits again"
    if 7 <= held / wanted <= 9 or 6.5 <= ratio <= 9:
        return f"the {name} is 8 times too fast: mbps (megabytes) used instead of mbit; hint: write rates in bit"
    if ratio > 2:
        return f"the {name} is limited but {ratio:.1f} times too fast; hint: find the path that bypasses the limit"
    if ratio > 1:
        return f"the {name} is too fast; hint: use a smaller tbf burst, and no other qdisc instead of tbf"
    return slow
