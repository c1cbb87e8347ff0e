"""CPU quotas as the kernel takes them: so many microseconds of CPU time in every period. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import msgspec

Grain = Literal["quota", "period", "pacing"]
"""How a CPU quota is divided into pieces of time (docs/throttling.md): in periods of 100 ms × dilation; in periods as
short as a quota of one tick allows; or in periods of 100 ms × dilation with visible events held by the agent."""

PERIOD_US = 100_000
"""The usual CFS period, before dilation. Measured: torch steps take 1.06 times their ideal time with it, and 1.33 times
with 20 ms."""

LONGEST_PERIOD_US = 1_000_000
LEAST_QUOTA_US = 1_000
"""The kernel's bounds of a period and of the quota in it."""

LEAST_CPUS = LEAST_QUOTA_US / LONGEST_PERIOD_US
"""CPUs: 0.001."""

QUOTA_FILES = ("cpu.max", "cpu.max.burst", "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.cfs_burst_us")
"""The files that `parse_quota` reads, of versions 2 and 1. Kernels before 5.14 have no burst."""


TICK_US = 4_000
"""A tick of the accounting of most kernels (250 Hz). A thread that has used up its quota is stopped at the next tick,
so a shorter quota makes longer gaps, and no shorter runs."""


def period_for(cpus: float, grain: Grain = "quota", tick_us: int = TICK_US, dilation: float = 1.0) -> int:
    """Microseconds of the period for a quota of `cpus` after dilation.

    100 ms × the dilation, so that the same work is stopped equally often at any dilation, or longer if the quota in it
    would be below 1 ms; 1 s at most. With the grain `period`: as short as a quota of one tick allows.
    """
    if grain == "period":
        return min(LONGEST_PERIOD_US, max(tick_us, math.ceil(tick_us / cpus)))
    return min(LONGEST_PERIOD_US, max(round(PERIOD_US * dilation), math.ceil(LEAST_QUOTA_US / cpus)))


class CpuQuota(msgspec.Struct, frozen=True):
    """`quota_us` of CPU time in every `period_us`. `burst_us`: unused quota that is kept for later periods; None if the
    kernel keeps none."""

    quota_us: int
    period_us: int
    burst_us: int | None = None

    @property
    def cpus(self) -> float:
        return self.quota_us / self.period_us


def parse_quota(files: Mapping[str, str]) -> CpuQuota | None:
    """From the contents of QUOTA_FILES by name. None: no limit. Raises KeyError, ValueError: a file is missing or not
    understood."""
    if "cpu.max" in files:
        quota, period = files["cpu.max"].split()
    else:
        quota, period = files["cpu.cfs_quota_us"].strip(), files["cpu.cfs_period_us"].strip()
    if quota in ("max", "-1"):
        return None
    if int(period) <= 0:
        raise ValueError(f"a period of {period} us")
    burst = files.get("cpu.max.burst", files.get("cpu.cfs_burst_us"))
    return CpuQuota(int(quota), int(period), None if burst is None else int(burst))
