"""The limits of a device, and what a kernel reports of them. Pure."""

from __future__ import annotations

from typing import Annotated

import msgspec

from edgebed.limits.cpu_quota import PERIOD_US, TICK_US, Grain, period_for

LEAST_MBIT_S, MOST_MBIT_S, MOST_LATENCY_MS = 0.01, 100_000.0, 10_000.0
Mbit = Annotated[float, msgspec.Meta(ge=LEAST_MBIT_S, le=MOST_MBIT_S)]
LatencyMs = Annotated[float, msgspec.Meta(ge=0, le=MOST_LATENCY_MS)]
"""A rate, and a latency one way, as profiles, scenarios and traces may have them."""


class Limits(msgspec.Struct, frozen=True):
    """The limits of one device. Rates are bit/s of Ethernet frames on the wire; CPUs are CPU seconds per second, held
    as a quota of CPU time in every `period_us`.

    `named_threads`: of torch, where the profile names them.
    `unlimited`: nothing is held, it is a real board. Then CPUs are its cores, and the other figures are what it has
    about: methods plan their first round with them.
    """

    cpus: float
    uplink_bit_s: int
    downlink_bit_s: int
    memory_mib: int
    latency_ms: float = 0.0
    period_us: int = PERIOD_US
    unlimited: bool = False
    named_threads: int = 0

    def dilated(self, dilation: float, grain: Grain = "quota", tick_us: int = TICK_US) -> Limits:
        """The same device with every quota and rate divided by `dilation`, the quota's period and the latency
        multiplied by it (`period_for`); memory stays. A real board stays as it is."""
        if self.unlimited:
            return self
        cpus = self.cpus / dilation
        return msgspec.structs.replace(
            self,
            cpus=cpus,
            period_us=period_for(cpus, grain, tick_us, dilation),
            uplink_bit_s=round(self.uplink_bit_s / dilation),
            downlink_bit_s=round(self.downlink_bit_s / dilation),
            latency_ms=self.latency_ms * dilation,
        )

    @property
    def threads(self) -> int:
        """Of torch, whatever the dilation: those that the profile names, else one; of a board without limits, one per
        core."""
        return self.named_threads or (max(1, int(self.cpus)) if self.unlimited else 1)


NONE_SET = Limits(cpus=0.0, uplink_bit_s=0, downlink_bit_s=0, memory_mib=0)
"""Of a device on which no limits were put yet."""


def only_rates(one: Limits, other: Limits) -> bool:
    """Whether two devices differ in nothing but their rates."""
    rates = {"uplink_bit_s": other.uplink_bit_s, "downlink_bit_s": other.downlink_bit_s}
    return msgspec.structs.replace(one, **rates) == other


class Held(msgspec.Struct, frozen=True):
    """Limits of one device as the kernel reports them, and what the device has used since its start.

    If `read_back` is False, the agent enforces its own limits and the kernel knows none of them. Then the limits here
    say nothing, and only `cpu_s` and `memory_used_mib` are measured.
    """

    device: str
    requested: Limits
    cpus: float | None  # None: no quota is set
    uplink_bit_s: int | None
    downlink_bit_s: int | None
    memory_mib: int | None
    cpu_s: float  # used
    throttled_s: float
    throttled_periods: int
    memory_used_mib: float
    uplink_bytes: int
    downlink_bytes: int
    alive: bool
    details: dict[str, str] = {}  # raw read-outs (qdisc, cgroup files) for the report
    uplink_latency_ms: float = 0.0
    downlink_latency_ms: float = 0.0
    read_back: bool = True
    period_us: int | None = None  # of the quota
    burst_us: int | None = None  # of the quota; None: the kernel keeps no unused quota
    cores: int | None = None  # of the machine that holds them; None: this host
