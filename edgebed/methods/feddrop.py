"""FedDrop: every device trains a random sub-model that fits it (Wen, Jeon and Huang 2022; papers.md §3). Pure.

Each round the server draws, for each device anew, a fraction of the neurons of every hidden fully connected layer, and
cuts the sub-model out; the updates are averaged per coordinate over the devices that had it. Convolutions stay whole,
as in the experiments of the FedPMT paper (table II), unless `layers` is `all` or the model has no hidden layer of that
kind **[ours]**. The fraction is such that its cost matches the device (`edgebed.methods.parts.capacity`), as table II
matches the cost of both methods per device.

Nothing is scaled for what was dropped, neither on the device nor in the full model **[ours]**. A device drops the same
channels in all batches of a round, as in the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
import torch
from torch import nn

from edgebed.methods.base import DeviceView, Outcome, Plan, Schedule
from edgebed.methods.parts.aggregation import Aggregate
from edgebed.methods.parts.capacity import fit
from edgebed.methods.parts.device_sampling import Draw
from edgebed.methods.parts.submodels import Share, SubModels
from edgebed.models.width import Groups, Keep, random_keep
from edgebed.wire.messages import Assignment

TENTHS = tuple(tenth / 10 for tenth in range(1, 11))


class FedDrop(SubModels):
    name = "feddrop"
    remembers = "powers"
    variants = ({"widths": [0.5, 1.0], "levels": [0.3, 1.0], "layers": "all"},)

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """`widths`: fractions to choose from; `layers`: leave neurons of hidden fully connected layers out, or filters
        of convolutions as well; `levels`: the share of the fastest device's CPUs that each fraction asks for;
        `deadline_s`: what fractions are picked to keep; `draw`: a round's devices at random, or equally many of every
        compute level, as FedPMT's."""

        widths: tuple[Share, ...] = TENTHS
        layers: Literal["fc", "all"] = "fc"
        levels: tuple[Share, ...] = ()
        deadline_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
        draw: Draw = "random"
        aggregate: Aggregate = "samples"

    options: Options

    def narrowed(self, groups: Groups) -> Groups:
        """Hidden fully connected layers alone, where the model has some and `layers` does not say all."""
        model = self.context.model
        hidden = {name: group for name, group in groups.items() if isinstance(model.get_submodule(name), nn.Linear)}
        return hidden if hidden and self.options.layers == "fc" else groups

    def fit_widths(self, devices: Sequence[DeviceView], schedule: Schedule) -> tuple[dict[str, int], dict[str, float]]:
        fitted = fit(
            devices,
            schedule,
            self.costs,
            self.traffic,
            self.powers,
            levels=self.levels,
            deadline_s=self.options.deadline_s,
        )
        self._places = fitted.sizes
        return fitted.sizes, fitted.predicted_s()

    def follow(self, round: int, devices: Sequence[DeviceView], plan: Plan) -> None:
        super().follow(round, devices, plan)
        widths = msgspec.convert(plan.notes["widths"], dict[str, float])
        self._places = {name: self.widths.index(width) for name, width in widths.items()}

    def keep(self, width: float, round: int, assignment: Assignment) -> Keep:
        """Drawn by the assignment's seed, so anew for each device and round."""
        return random_keep(self.groups, width, torch.Generator().manual_seed(assignment.seed))

    def observe(self, round: int, outcomes: Sequence[Outcome]) -> None:
        self.powers.observe(outcomes, lambda outcome: self._places[outcome.device], self.traffic)
