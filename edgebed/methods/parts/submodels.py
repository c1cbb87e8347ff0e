"""Base of the methods that train narrow models: sizes, tasks and the merge per coordinate (papers.md §3, §5). Pure.

They differ in which channels a device keeps. A narrow model is physically smaller: its device computes less in every
pass, and less crosses its link. What the channels of a model are is derived from its modules (`edgebed.models.width`);
the input and the logits are never narrowed. Heads are not trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from edgebed.errors import UsageError
from edgebed.methods.base import (
    Context,
    Contribution,
    DeviceView,
    Method,
    Plan,
    Schedule,
    assign,
    trained_names,
)
from edgebed.methods.parts.capacity import Powers, checked_levels
from edgebed.models.costs import size_bytes, width_costs
from edgebed.models.staged import Weights
from edgebed.models.width import Groups, Keep, ordered_keep, scatter_mean, slice_weights, width_groups
from edgebed.wire.messages import Assignment

Share = Annotated[float, msgspec.Meta(gt=0, le=1)]


class SubModels(Method):
    """Each device trains a sub-model of its own width. A method chooses widths (`fit_widths`) and channels (`keep`)."""

    def setup(self, context: Context) -> None:
        super().setup(context)
        self.widths = checked_widths(self.options.widths)
        self.levels = checked_levels(self.options.levels, len(self.widths))
        self.groups = self.narrowed(width_groups(context.model))
        self.costs = width_costs(context.model, self.groups, self.widths)
        self.traffic = self._traffic()
        self.powers = Powers()

    def narrowed(self, groups: Groups) -> Groups:
        """The groups of channels that sub-models leave some out of: by default all of the model's."""
        return groups

    def _traffic(self) -> list[int]:
        """Bytes of a round by width: the narrow model down and up."""
        model = self.context.model
        state = model.weights()
        weights = {name: state[name] for name in model.names_below(len(model), head=False)}
        kept = [ordered_keep(self.groups, width) for width in self.widths]
        return [2 * size_bytes(slice_weights(weights, self.groups, each)) for each in kept]

    def fit_widths(self, devices: Sequence[DeviceView], schedule: Schedule) -> tuple[dict[str, int], dict[str, float]]:
        """The place of each device's width, and the seconds its round is predicted to take (may be empty)."""
        raise NotImplementedError  # what the methods differ in

    def keep(self, width: float, round: int, assignment: Assignment) -> Keep:
        """The channels a device keeps at a width below 1."""
        raise NotImplementedError  # what the methods differ in

    def draw(self, round: int, devices: Sequence[DeviceView], share: float, seed: int) -> list[DeviceView]:
        self.powers.meet(devices)
        return super().draw(round, devices, share, seed)

    def plan(self, round: int, devices: Sequence[DeviceView], schedule: Schedule) -> Plan:
        self.powers.meet(devices)
        places, predicted = self.fit_widths(devices, schedule)
        widths = {name: self.widths[place] for name, place in places.items()}
        assignments = {device.name: self._assign(device, schedule, round, widths[device.name]) for device in devices}
        return Plan(assignments, predicted, {"widths": widths})

    def follow(self, round: int, devices: Sequence[DeviceView], plan: Plan) -> None:
        self.powers.meet(devices)

    def _assign(self, device: DeviceView, schedule: Schedule, round: int, width: float) -> Assignment:
        assignment = assign(
            self.context,
            device,
            schedule,
            round,
            stages=len(self.context.model),
            objective="output",
            uploads=("weights",),
        )
        kept = dict(self.keep(width, round, assignment)) if width < 1 else {}
        return msgspec.structs.replace(assignment, keep=kept)

    def task_weights(self, weights: Weights, assignment: Assignment) -> Weights:
        chosen = {name: weights[name] for name in trained_names(self.context.model, assignment)}
        return slice_weights(chosen, self.groups, assignment.keep) if assignment.keep else chosen

    def merge(self, weights: Weights, contributions: Sequence[Contribution]) -> Weights:
        """Every coordinate averaged over the devices that had it; one that none had stays."""
        by_samples = self.options.aggregate == "samples"
        return scatter_mean(
            weights,
            self.groups,
            [
                (float(part.samples) if by_samples else 1.0, part.weights, part.assignment.keep)
                for part in contributions
            ],
        )


def checked_widths(widths: Sequence[float]) -> tuple[float, ...]:
    """Raises UsageError unless they increase and end with the full model."""
    if not widths or list(widths) != sorted(set(widths)) or widths[-1] != 1:
        raise UsageError(f"widths {list(widths)}", hint="give increasing fractions that end with 1.0")
    return tuple(widths)
