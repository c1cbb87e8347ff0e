"""Drop the slowest: draw more devices than are needed, merge the first to end (Bonawitz et al. 2019, §2;
papers.md §5). Pure.

The round ends when the `keep` share of its devices is done; the work of the others is thrown away. The paper draws
130 % of the devices it needs; with 30 % dropped it is 1 / 0.7, so 143 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from edgebed.methods.base import DeviceView, Plan, Schedule
from edgebed.methods.fedavg import FedAvg
from edgebed.methods.parts.aggregation import Aggregate
from edgebed.methods.parts.device_sampling import draw_share


class DropSlowest(FedAvg):
    name = "drop-slowest"

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        keep: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.7
        aggregate: Aggregate = "samples"

    def draw(self, round: int, devices: Sequence[DeviceView], share: float, seed: int) -> list[DeviceView]:
        """So many that the first `keep` of them are `share` of all; all where there are not so many."""
        return draw_share(devices, min(1.0, share / self.options.keep), seed, round)

    def plan(self, round: int, devices: Sequence[DeviceView], schedule: Schedule) -> Plan:
        plan = super().plan(round, devices, schedule)
        enough = max(1, int(self.options.keep * len(devices) + 0.5))
        return msgspec.structs.replace(plan, enough=enough, notes={"enough": enough})
