"""What a CPU second of a device is: one of this host, or one of a reference. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

AFTERWARDS = 1.6
"""By which the slowest pieces may become slower after they were measured; a large quota costs nothing."""

UNMEASURED = 1.5
"""Head room of the quotas under which it is measured how much the devices need."""


class Need(msgspec.Struct, frozen=True):
    """CPU seconds that a device takes on this host for one of the reference: mean and 99th percentile of pieces."""

    mean: float
    p99: float


class Speed(msgspec.Struct, frozen=True):
    """What a CPU second of a device is."""

    reference: str = ""  # name of the reference whose CPU seconds they are; "": they are those of the host
    demand: float = 1.0  # CPU seconds that this host is taken to need, on average, for one of the reference
    # the same by the index, of a fleet that is admitted before it is measured: it claims what is left of it
    unsure: float = 0.0
    index: float = 1.0  # CPU seconds of the reference for one of this host, as the reference loop told
    needs: Mapping[str, Need] = {}  # by device, as measured under its quota; empty before

    def index_of(self, device: str) -> float:
        """CPU seconds of the reference for one of this host, by the device's own work where that was measured."""
        return 1 / self.needs[device].mean if device in self.needs else self.index

    def ceiling(self, device: str) -> float:
        """CPUs of a quota on this host for one CPU of a device, or of what was not measured: the server."""
        return (
            AFTERWARDS * self.needs[device].p99
            if device in self.needs
            else self.demand * (UNMEASURED if self.reference else 1.0)
        )
