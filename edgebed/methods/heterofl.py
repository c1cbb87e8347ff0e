"""HeteroFL: every class of device trains the same first channels of each layer (Diao, Ding and Tarokh 2021; papers.md
§5). Pure.

A device's width is fixed when it is first met: the widest of a few whose cost its CPUs can bear, beside the rest of the
fleet (`edgebed.methods.parts.capacity`) **[ours]**; the paper hands its five levels out at random. Every coordinate is
averaged over the devices that had it. With `rolling` the window moves on by one channel each round (FedRolex, Alam et
al. 2022), so that all channels get trained.

What the paper has beside that is left out: the scaler behind each layer (outputs divided by the width while training),
batch norm without running statistics that are asked for at the end (sBN; here they are averaged per channel like
weights), and the masked cross-entropy for classes that a device lacks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from edgebed.methods.base import Context, DeviceView, Schedule
from edgebed.methods.parts.aggregation import Aggregate
from edgebed.methods.parts.capacity import asked_cpus, largest_within
from edgebed.methods.parts.submodels import Share, SubModels
from edgebed.models.staged import Weights
from edgebed.models.width import Groups, Keep, kept_size
from edgebed.wire.messages import Assignment


class HeteroFl(SubModels):
    name = "heterofl"
    variants = ({"rolling": True},)

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """`widths`: those of the classes, by default the paper's; `levels`: the share of the fastest device's CPUs that
        each asks for; `rolling`: FedRolex."""

        widths: tuple[Share, ...] = (0.0625, 0.125, 0.25, 0.5, 1.0)
        levels: tuple[Share, ...] = ()
        rolling: bool = False
        aggregate: Aggregate = "samples"

    options: Options

    def setup(self, context: Context) -> None:
        super().setup(context)
        self.places: dict[str, int] = {}

    def fit_widths(self, devices: Sequence[DeviceView], schedule: Schedule) -> tuple[dict[str, int], dict[str, float]]:
        asked = asked_cpus(self.costs, self.levels, self.powers.cpus.values())
        for name, cpus in self.powers.cpus.items():
            self.places.setdefault(name, largest_within(cpus, asked))
        return {device.name: self.places[device.name] for device in devices}, {}

    def keep(self, width: float, round: int, assignment: Assignment) -> Keep:
        return window(self.groups, width, round if self.options.rolling else 0)

    def state(self) -> dict[str, Any]:
        return {"places": dict(self.places), "cpus": dict(self.powers.cpus)}

    def restore(self, state: Mapping[str, Any], tensors: Weights) -> None:
        self.places = msgspec.convert(state["places"], dict[str, int])
        self.powers.cpus = msgspec.convert(state.get("cpus", {}), dict[str, float])  # older checkpoints have none


def window(groups: Groups, fraction: float, start: int) -> dict[str, tuple[int, ...]]:
    """`fraction` of the channels of every group, from `start` on and round its end."""
    return {
        name: tuple(sorted((start + place) % group.size for place in range(kept_size(group, fraction))))
        for name, group in groups.items()
    }
