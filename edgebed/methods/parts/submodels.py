"""Base of the methods that train narrow models: sizes, tasks and the merge per coordinate (papers.md §3, §5). Pure.

They differ in which channels a device keeps. A narrow model is physically smaller: its device computes less in every
pass, and less crosses its link. What the channels of a model are is derived from its modules (`edgebed.models.width`);
the input and the logits are never narrowed. Heads are not trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from edgebed.errors import RunError, UsageError
from edgebed.methods.base import (
    Context,
    Contribution,
    DeviceView,
    Method,
    Plan,
    Schedule,
    Trained,
    assign,
    trained_names,
)
from edgebed.methods.parts.capacity import Powers, asked_cpus, checked_levels, largest_within
from edgebed.models.costs import size_bytes, width_costs
from edgebed.models.staged import StagedModel, Weights
from edgebed.models.width import Groups, Keep, ordered_keep, scatter_mean, slice_weights, width_groups
from edgebed.wire.messages import Assignment, Report

Share = Annotated[float, msgspec.Meta(gt=0, le=1)]

STATISTICS = (".running_mean", ".running_var")


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

    def half(self, device: DeviceView, width: float) -> tuple[str, dict[str, Any]]:
        """Objective and options of a device's half."""
        return "output", {}

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
        objective, options = self.half(device, width)
        assignment = assign(
            self.context,
            device,
            schedule,
            round,
            stages=len(self.context.model),
            objective=objective,
            uploads=("weights",),
            options=options,
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


class FixedWidths(SubModels):
    """A device's width is fixed when it is first met: the widest whose cost its CPUs can bear, beside the rest of the
    fleet (`edgebed.methods.parts.capacity`) **[ours]**. It keeps the first channels.

    Attributes:
        statistics: running means and variances of all batch norms that do not go with the weights, as they are before
            the first round; {} where they do.
    """

    statistics: Weights

    def setup(self, context: Context) -> None:
        super().setup(context)
        self.places: dict[str, int] = {}
        self.statistics = statistics_of(context.model)

    def fit_widths(self, devices: Sequence[DeviceView], schedule: Schedule) -> tuple[dict[str, int], dict[str, float]]:
        asked = asked_cpus(self.costs, self.levels, self.powers.cpus.values())
        for name, cpus in self.powers.cpus.items():
            self.places.setdefault(name, largest_within(cpus, asked))
        return {device.name: self.places[device.name] for device in devices}, {}

    def keep(self, width: float, round: int, assignment: Assignment) -> Keep:
        return ordered_keep(self.groups, width)

    def task_weights(self, weights: Weights, assignment: Assignment) -> Weights:
        sent = super().task_weights(weights, assignment)
        return {name: value for name, value in sent.items() if name not in self.statistics}

    def update_names(self, assignment: Assignment, notes: Mapping[str, float]) -> list[str]:
        return [name for name in super().update_names(assignment, notes) if name not in self.statistics]

    def decode_update(
        self, assignment: Assignment, report: Report, sent: Weights, update: Weights, extra: Weights
    ) -> Weights:
        """Statistics come as extra."""
        for name, value in extra.items():
            if name.endswith(".running_var") and value.lt(0).any():
                raise RunError(f"{name!r} holds a variance of {float(value.min()):.3g}")
        return update

    def state(self) -> dict[str, Any]:
        return {"places": dict(self.places), "cpus": dict(self.powers.cpus)}

    def restore(self, state: Mapping[str, Any], tensors: Weights) -> None:
        self.places = msgspec.convert(state["places"], dict[str, int])
        self.powers.cpus = msgspec.convert(state.get("cpus", {}), dict[str, float])  # older checkpoints have none


def as_output(assignment: Assignment) -> Assignment:
    """What a half of such a method is charged as: training the narrow model plainly."""
    return msgspec.structs.replace(assignment, objective="output", options={})


def statistics_of(model: StagedModel) -> Weights:
    """Running means and variances of the batch norms of all stages."""
    weights, names = model.weights(), model.names_below(len(model), head=False)
    return {name: weights[name].clone() for name in names if name.endswith(STATISTICS)}


def without_statistics(trained: Trained) -> Trained:
    weights = {name: value for name, value in trained.weights.items() if not name.endswith(STATISTICS)}
    return msgspec.structs.replace(trained, weights=weights)


def checked_widths(widths: Sequence[float]) -> tuple[float, ...]:
    """Raises UsageError unless they increase and end with the full model."""
    if not widths or list(widths) != sorted(set(widths)) or widths[-1] != 1:
        raise UsageError(f"widths {list(widths)}", hint="give increasing fractions that end with 1.0")
    return tuple(widths)
