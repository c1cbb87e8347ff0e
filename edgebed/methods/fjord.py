"""FjORD: nested widths, one drawn for each batch (Horvath et al. 2021, algorithm 1; papers.md §5). Pure.

A device has a largest width p_max by its CPUs. For each batch it draws a width p, evenly from those up to p_max, and
trains the first channels of every layer (ordered dropout). Batch norms have running statistics of their own for each
width. Every coordinate is averaged over the devices whose p_max reaches it (eq. 1). With `distil` the network of width
p_max learns from each batch, too, and teaches the drawn one (α = T = 1).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.func import functional_call

from edgebed.methods.base import Batch, Context, Contribution, DeviceView, Stream, device_half
from edgebed.methods.parts.aggregation import Aggregate, average
from edgebed.methods.parts.distillation import distillation
from edgebed.methods.parts.evaluation import Score, evaluate
from edgebed.methods.parts.local_training import DevicePart, Half
from edgebed.methods.parts.submodels import FixedWidths, Share, as_output, statistics_of, without_statistics
from edgebed.models.learning import loss_of
from edgebed.models.staged import GIVEN, StagedModel, Weights, with_prefix, without_prefix
from edgebed.models.width import kept_sizes, narrow_model, ordered_keep, slice_weights
from edgebed.wire.messages import Assignment


class Local(msgspec.Struct, frozen=True):
    """What a device's half is told, of each width up to p_max: how many channels of each group it has, and its cost
    relative to p_max; and whether the widest teaches."""

    sizes: tuple[dict[str, int], ...]
    costs: tuple[float, ...]
    distil: bool


def drawn_place(assignment: Assignment, number: int, widths: int) -> int:
    """The place of the width that batch `number` of a task is trained with; it follows from the seed."""
    return Random(f"{assignment.seed}/width/{number}").randrange(widths)


def worth(assignment: Assignment, number: int, samples: int) -> int:
    """A batch costs as much as one of p_max with fewer samples; with a teacher, as both."""
    told = msgspec.convert(assignment.options, Local)
    place = drawn_place(assignment, number, len(told.costs))
    taught = told.distil and place < len(told.costs) - 1
    return max(1, round(samples * (told.costs[place] + taught)))


@device_half("fjord", head=False, resolve=as_output, worth=worth)
def fjord_half(model: StagedModel, assignment: Assignment, batches: Iterable[Batch]) -> Half:
    """The narrow networks have the first rows and columns of the weights of p_max, and statistics of their own."""
    told, part = msgspec.convert(assignment.options, Local), DevicePart(model, assignment)
    own, last = dict(part.stages.named_parameters()), len(told.sizes) - 1
    nets = [narrow_model(model, {name: tuple(range(size)) for name, size in sizes.items()}) for sizes in told.sizes]
    for place, net in enumerate(nets):
        net.load(without_prefix(model.given, f"{place}."))
    stages = [net.stages(0, len(net)).train() for net in nets]

    def logits(place: int, x: Tensor) -> Tensor:
        shapes = {name: value.shape for name, value in stages[place].named_parameters()}
        first = {name: own[name][tuple(map(slice, shape))] for name, shape in shapes.items()}
        out: Tensor = functional_call(stages[place], first, (x,))
        return out

    for number, (x, y) in enumerate(batches):
        place = drawn_place(assignment, number, len(nets))
        out = logits(place, x)
        loss = loss_of(out, y)
        if told.distil and place < last:
            widest = logits(last, x)
            taught = distillation(out.flatten(0, -2), widest.detach().flatten(0, -2), 1.0)
            loss = loss_of(widest, y) + taught
        part.step(loss, len(y))
    yield from ()
    return msgspec.structs.replace(without_statistics(part.trained()), extra=numbered(map(statistics_of, nets)))


def numbered(each: Iterable[Weights]) -> Weights:
    """Tensors of all widths, by place and name."""
    return {f"{place}.{name}": value for place, own in enumerate(each) for name, value in own.items()}


class Fjord(FixedWidths):
    name = "fjord"
    variants = ({"distil": True},)

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """`widths`: the set P, by default the paper's U_5; `levels`: the share of the fastest device's CPUs that each
        p_max asks for; `distil`: self-distillation."""

        widths: tuple[Share, ...] = (0.2, 0.4, 0.6, 0.8, 1.0)
        levels: tuple[Share, ...] = ()
        distil: bool = False
        aggregate: Aggregate = "samples"

    options: Options

    def setup(self, context: Context) -> None:
        super().setup(context)
        keeps = [ordered_keep(self.groups, width) for width in self.widths]
        self.sizes = tuple(dict(kept_sizes(keep)) for keep in keeps)
        self.by_width = numbered(slice_weights(self.statistics, self.groups, keep) for keep in keeps)

    def half(self, device: DeviceView, width: float) -> tuple[str, dict[str, Any]]:
        upto = self.widths.index(width) + 1
        costs = tuple(cost / self.costs[upto - 1] for cost in self.costs[:upto])
        return "fjord", msgspec.to_builtins(Local(self.sizes[:upto], costs, self.options.distil))

    def task_weights(self, weights: Weights, assignment: Assignment) -> Weights:
        own = {name: self.by_width[name] for name in self.extra(assignment)}
        return {**super().task_weights(weights, assignment), **with_prefix(own, GIVEN)}

    def extra(self, assignment: Assignment) -> dict[str, Stream]:
        upto = len(msgspec.convert(assignment.options, Local).sizes)
        own = {name: value for name, value in self.by_width.items() if int(name.partition(".")[0]) < upto}
        return {name: Stream(tuple(value.shape), value.dtype) for name, value in own.items()}

    def merge(self, weights: Weights, contributions: Sequence[Contribution]) -> Weights:
        by_samples = self.options.aggregate == "samples"
        shares = [(float(part.samples) if by_samples else 1.0, part.extra) for part in contributions]
        self.by_width = average(self.by_width, shares)
        return {**super().merge(weights, contributions), **without_prefix(self.by_width, f"{len(self.widths) - 1}.")}

    def evaluate(self, weights: Weights, x: Tensor, y: Tensor, accelerator: torch.device) -> Score:
        """The whole network; `extra` has the accuracy of each width (`width0.2`)."""
        accuracies: dict[str, float] = {}
        for place, width in enumerate(self.widths):
            keep, own = ordered_keep(self.groups, width), without_prefix(self.by_width, f"{place}.")
            net, first = narrow_model(self.context.model, keep), slice_weights(weights, self.groups, keep)
            score = evaluate(net, {**first, **own}, x, y, accelerator)
            accuracies[f"width{width:g}"] = score.accuracy
        return msgspec.structs.replace(score, extra=accuracies)

    def tensors(self) -> Weights:
        return {name: value.clone() for name, value in self.by_width.items()}  # some are also the weights'

    def restore(self, state: Mapping[str, Any], tensors: Weights) -> None:
        super().restore(state, tensors)
        self.by_width = dict(tensors)
