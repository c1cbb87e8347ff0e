"""Turns limits into arguments of tc and values of cgroup files, and parses what the kernel reports. Pure.

All units are converted here. In tc, `mbps` means mega*bytes* per second, so rates are written as integers in `bit`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from edgebed.errors import LimitError
from edgebed.limits.cpu_quota import LEAST_CPUS, LEAST_QUOTA_US, PERIOD_US, CpuQuota, parse_quota
from edgebed.limits.spec import Held, Limits

FRAME = 1540
"""Bytes of one full Ethernet frame and a little more. tbf drops packets that are larger than its burst."""

BURST_S = 0.25e-3
"""Burst of tbf beyond one frame, as time at the rate. A larger burst makes short transfers too fast (1.9 times at
32 KB); a smaller one makes fast links too slow (0.89 times with 1600 bytes at 100 Mbit/s)."""

QUEUE_BYTES = 256 * 1024
"""Size of tbf's queue. Control messages wait behind it. But with 64 KB, eight connections lose so many segments that
retransmission leaves a sixth of the link or more unused (measured: 0.35 to 0.9 of the rate)."""

TOLERANCE = 0.01
"""Largest allowed difference between a limit as set and as read back: tc rounds to bytes/s, cgroups to microseconds."""


# ---- link ------------------------------------------------------------------------------------------------------------


def burst_bytes(rate_bit_s: int) -> int:
    return FRAME + int(rate_bit_s / 8 * BURST_S)


def shape_commands(interface: str, rate_bit_s: int, latency_ms: float = 0.0) -> list[list[str]]:
    """The tc commands that limit `interface`'s egress to `rate_bit_s`. Repeated commands change the limit in place.

    The queue below tbf is always named. So a plain queue replaces an earlier delay that is no longer wanted, and the
    link is never unlimited, as it would be for a moment if the root queue were deleted first.
    """
    root = ["tc", "qdisc", "replace", "dev", interface, "root", "handle", "1:", "tbf"]
    root += ["rate", f"{int(rate_bit_s)}bit", "burst", str(burst_bytes(rate_bit_s)), "limit", str(QUEUE_BYTES)]
    below = ["tc", "qdisc", "replace", "dev", interface, "parent", "1:1", "handle"]
    if latency_ms:
        return [root, [*below, "10:", "netem", "delay", f"{round(latency_ms * 1000)}us", "limit", "10000"]]
    return [root, [*below, "20:", "bfifo", "limit", str(QUEUE_BYTES)]]


def unshape_command(interface: str) -> list[str]:
    return ["tc", "qdisc", "del", "dev", interface, "root"]


def show_command(interface: str) -> list[str]:
    return ["tc", "-j", "-s", "qdisc", "show", "dev", interface]


def ifb_commands(interface: str, ifb: str) -> list[list[str]]:
    """The commands that redirect all packets arriving at `interface` through `ifb`, whose egress can be limited."""
    redirect = "parent ffff: protocol all u32 match u32 0 0 action mirred egress redirect dev"
    return [
        ["ip", "link", "add", ifb, "type", "ifb"],
        ["ip", "link", "set", ifb, "up"],
        ["tc", "qdisc", "replace", "dev", interface, "handle", "ffff:", "ingress"],
        ["tc", "filter", "add", "dev", interface, *redirect.split(), ifb],
    ]


class Shaped(msgspec.Struct, frozen=True):
    """The limits of one interface's egress. `rate_bit_s` is None if there is none."""

    rate_bit_s: int | None
    bytes: int
    drops: int
    text: str  # for the report
    latency_ms: float = 0.0
    dump: str = ""  # what tc printed, on one line


def parse_qdisc(output: str) -> Shaped:
    """Parse `tc -j -s qdisc show dev X`, which prints bytes per second, and delays in seconds. Raises LimitError if the
    output is not understood."""
    try:
        qdiscs: list[dict[str, Any]] = json.loads(output or "[]")
        total = sum(int(q.get("bytes", 0)) for q in qdiscs if q.get("root"))
        drops = sum(int(q.get("drops", 0)) for q in qdiscs if q.get("root"))
        tbf = next((q["options"] for q in qdiscs if q.get("kind") == "tbf" and q.get("root")), None)
        rate = None if tbf is None else int(tbf["rate"]) * 8
        delays = [q.get("options", {}).get("delay", {}) for q in qdiscs if q.get("kind") == "netem"]
        latency_ms = sum(float(delay.get("delay", 0.0)) for delay in delays) * 1e3
        kinds = ", ".join(str(q.get("kind", "?")) for q in qdiscs) or "none"
    except (ValueError, KeyError, TypeError, AttributeError):
        raise LimitError(f"cannot read the output of tc: {output[:200]!r}", hint="install iproute2 >= 5.0") from None
    text = kinds if tbf is None else f"tbf rate {rate} bit/s burst {tbf.get('burst')} B; {drops} drops"
    text = f"{text}; netem delay {latency_ms:g} ms" if delays else text
    return Shaped(rate, total, drops, text, latency_ms, json.dumps(qdiscs, separators=(",", ":")))


# ---- CPU and memory --------------------------------------------------------------------------------------------------


def quota_us(limits: Limits) -> int:
    """CPU microseconds in every period. Raises LimitError if the kernel would refuse them."""
    quota = round(limits.cpus * limits.period_us)
    if quota < LEAST_QUOTA_US:
        raise LimitError(
            f"the kernel refuses a quota of {limits.cpus:g} CPUs in periods of {limits.period_us / 1000:g} ms",
            hint=f"use at least {LEAST_CPUS:g} CPUs, and a period in which that is {LEAST_QUOTA_US} us",
        )
    return quota


Values = list[tuple[str, str, str]]
"""Rows of controller, file and value, in the order in which they must be written."""

OPTIONAL_FILES = ("memory.memsw.limit_in_bytes", "memory.swap.max", "cpu.max.burst", "cpu.cfs_burst_us")
"""Files that exist only if the kernel accounts for swap, or keeps unused quota."""


def cgroup_values(limits: Limits, version: int) -> Values:
    """The values that put `limits` on a cgroup.

    Uses quotas, not shares: shares only matter while others compete, so they serve as priority (`priority_values`).
    Forbids swap: a device that needs too much memory must fail, not become slow without a reason that anybody sees.
    Keeps no unused quota (burst): it would make work after a rest faster still.
    """
    quota, memory = quota_us(limits), str(limits.memory_mib * 2**20)
    if version == 2:
        return [
            ("cpu", "cpu.max.burst", "0"),
            ("cpu", "cpu.max", f"{quota} {limits.period_us}"),
            ("memory", "memory.max", memory),
            ("memory", "memory.swap.max", "0"),
        ]
    return [
        ("cpu", "cpu.cfs_burst_us", "0"),
        ("cpu", "cpu.cfs_period_us", str(limits.period_us)),
        ("cpu", "cpu.cfs_quota_us", str(quota)),
        ("memory", "memory.memsw.limit_in_bytes", "-1"),  # the kernel refuses a value below the next one
        ("memory", "memory.limit_in_bytes", memory),
        ("memory", "memory.memsw.limit_in_bytes", memory),  # the sum of memory and swap
    ]


def priority_values(version: int) -> dict[str, str]:
    """The weight of the cgroup above all devices. It makes sure that the quotas decide how much CPU devices get, and
    not the other programs of the host, such as the server halves. The quotas together leave the reserve free."""
    return {"cpu.weight": "10000"} if version == 2 else {"cpu.shares": "262144"}


def no_limits(version: int) -> Values:
    """The values that remove every limit."""
    if version == 2:
        unlimited = [("memory", name, "max") for name in ("memory.max", "memory.swap.max")]
        return [("cpu", "cpu.max", f"max {PERIOD_US}"), *unlimited]
    unlimited = [("memory", name, "-1") for name in ("memory.memsw.limit_in_bytes", "memory.limit_in_bytes")]
    return [("cpu", "cpu.cfs_quota_us", "-1"), *unlimited]


CGROUP_FILES: dict[int, dict[str, tuple[str, ...]]] = {
    1: {
        "cpu": ("cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.cfs_burst_us", "cpu.stat"),
        "cpuacct": ("cpuacct.usage",),
        "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    },
    2: {"cpu": ("cpu.max", "cpu.max.burst", "cpu.stat"), "memory": ("memory.max", "memory.current")},
}
"""The files that `parse_cgroup` reads, by version and controller."""


class Group(msgspec.Struct, frozen=True):
    """A cgroup's limits and use. None: no limit."""

    quota: CpuQuota | None
    memory_mib: int | None
    cpu_s: float
    throttled_s: float
    throttled_periods: int
    memory_used_mib: float
    dump: str = ""  # what the kernel's files held, on one line


def parse_cgroup(files: Mapping[str, str], version: int) -> Group:
    """Parse the contents of CGROUP_FILES. Raises LimitError if a file is missing or not understood."""
    try:
        stat = {k: int(v) for k, v in (line.split() for line in files["cpu.stat"].splitlines())}
        if version == 2:
            limit, used = files["memory.max"].strip(), int(files["memory.current"])
            cpu_s, throttled_s = stat["usage_usec"] / 1e6, stat.get("throttled_usec", 0) / 1e6
        else:
            limit, used = files["memory.limit_in_bytes"].strip(), int(files["memory.usage_in_bytes"])
            cpu_s, throttled_s = int(files["cpuacct.usage"]) / 1e9, stat.get("throttled_time", 0) / 1e9
        quota = parse_quota(files)
        # Version 1 expresses "no limit" as a huge number of bytes.
        memory = None if limit == "max" or int(limit) >= 2**60 else int(limit) // 2**20
    except (KeyError, ValueError) as error:
        raise LimitError(
            f"the cgroup's files cannot be read: {error!r}", hint="enable the cpu and memory controllers"
        ) from None
    dump = "; ".join(f"{name}: {' '.join(text.split())}" for name, text in sorted(files.items()))
    return Group(quota, memory, cpu_s, throttled_s, stat.get("nr_throttled", 0), used / 2**20, dump)


def parse_docker_stats(host_config: Mapping[str, Any], stats: Mapping[str, Any]) -> Group:
    """Parse `docker inspect` and one sample of `docker stats`, for an engine whose kernel files are not visible."""
    cpu, memory = stats.get("cpu_stats", {}), stats.get("memory_stats", {})
    throttling = cpu.get("throttling_data", {})
    quota, period = host_config.get("CpuQuota") or 0, host_config.get("CpuPeriod") or PERIOD_US
    return Group(
        quota=CpuQuota(quota, period) if quota > 0 else None,
        memory_mib=(host_config.get("Memory") or 0) // 2**20 or None,
        cpu_s=cpu.get("cpu_usage", {}).get("total_usage", 0) / 1e9,
        throttled_s=throttling.get("throttled_time", 0) / 1e9,
        throttled_periods=throttling.get("throttled_periods", 0),
        memory_used_mib=memory.get("usage", 0) / 2**20,
    )


# ---- checks ----------------------------------------------------------------------------------------------------------


def confirm(limits: Limits, held: Held) -> Held:
    """Return `held`. Raises LimitError if the kernel does not hold the limits that were set."""
    if wrong := mismatches(limits, held):
        raise LimitError(f"{held.device}: {'; '.join(wrong)}", hint=ROUNDED if _rounded(limits, held) else DISTURBED)
    return held


DISTURBED = "another program on this host changes its limits"
ROUNDED = (
    "the engine lets systemd round CPU quotas to 1 % of a CPU: run as root on the engine's host; or set the engine's "
    '"exec-opts": ["native.cgroupdriver=cgroupfs"] (/etc/docker/daemon.json); or choose cpus and dilation so that '
    "every quota is a multiple of 0.01 CPU"
)


def _rounded(wanted: Limits, held: Held) -> bool:
    """Whether the quota in force is the wanted one, rounded by systemd to a multiple of 0.01 CPU."""
    hundredths = (held.cpus or 0.0) * 100
    off = abs(hundredths - wanted.cpus * 100)
    return off > 100 * TOLERANCE * wanted.cpus and off < 1 and abs(hundredths - round(hundredths)) < 1e-6


def mismatches(wanted: Limits, held: Held) -> list[str]:
    """The limits that differ by more than 1 % when read back, in words. Empty if all hold, or if nothing can be read
    back."""
    periods = [("period of the CPU quota", wanted.period_us, held.period_us, "us")] if held.period_us else []
    pairs: list[tuple[str, float, float | None, str]] = [
        ("CPU quota", wanted.cpus, held.cpus, "CPUs"),
        *periods,
        ("burst of the CPU quota", 0, held.burst_us or 0, "us"),
        ("uplink", wanted.uplink_bit_s, held.uplink_bit_s, "bit/s"),
        ("downlink", wanted.downlink_bit_s, held.downlink_bit_s, "bit/s"),
        ("memory", wanted.memory_mib, held.memory_mib, "MiB"),
        ("latency of the uplink", wanted.latency_ms, held.uplink_latency_ms, "ms"),
        ("latency of the downlink", wanted.latency_ms, held.downlink_latency_ms, "ms"),
    ]
    return [
        f"{name} is {'not limited' if is_held is None else f'{is_held:g}'}, wanted {want:g} {unit}"
        for name, want, is_held, unit in pairs
        if held.read_back and (is_held is None or abs(is_held - want) > TOLERANCE * want)
    ]


def held_by_kernel(
    device: str,
    requested: Limits,
    group: Group,
    links: tuple[Shaped, Shaped],
    counted: tuple[int, int],
    *,
    alive: bool,
    details: dict[str, str],
) -> Held:
    """What the kernel holds of one device.

    Args:
        links: uplink and downlink.
        counted: bytes up and down since the start.
        details: raw read-outs beside those of the links.
    """
    up, down = links
    return Held(
        device=device,
        requested=requested,
        cpus=group.quota.cpus if group.quota else None,
        uplink_bit_s=up.rate_bit_s,
        downlink_bit_s=down.rate_bit_s,
        memory_mib=group.memory_mib,
        cpu_s=group.cpu_s,
        throttled_s=group.throttled_s,
        throttled_periods=group.throttled_periods,
        memory_used_mib=group.memory_used_mib,
        uplink_bytes=counted[0],
        downlink_bytes=counted[1],
        alive=alive,
        details={
            "uplink": up.text,
            "downlink": down.text,
            **details,
            "uplink qdisc": up.dump,
            "downlink qdisc": down.dump,
        },
        uplink_latency_ms=up.latency_ms,
        downlink_latency_ms=down.latency_ms,
        period_us=group.quota.period_us if group.quota else None,
        burst_us=group.quota.burst_us if group.quota else None,
    )
