"""HeteroFL: every class of device trains the same first channels of each layer (Diao, Ding and Tarokh 2021; papers.md
§5). Pure.

While it trains, a device divides what each layer gives by its width (scaler), so that the whole model needs no scaling
when it is used; its batch norms use each batch's own statistics, and none are sent (static batch norm); and in its loss
the logits of classes that it lacks are 0 (masked cross entropy). Every coordinate is averaged over the devices that had
it; a row of the last layer over those that have its class. In the last round the devices are asked for the statistics
of the merged model, and run it forward. With `rolling` the window moves on by one channel each round (FedRolex, Alam et
al. 2022), so that all channels get trained; the three parts are then off, unless an option asks for them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from edgebed.methods.base import Batch, Context, Contribution, DeviceView, Plan, Schedule, Stream, Trained, device_half
from edgebed.methods.parts.aggregation import Aggregate, average
from edgebed.methods.parts.evaluation import Score, evaluate
from edgebed.methods.parts.local_training import DevicePart, Half
from edgebed.methods.parts.submodels import FixedWidths, Share, as_output, statistics_of, without_statistics
from edgebed.models.learning import loss_of
from edgebed.models.staged import StagedModel, Weights
from edgebed.models.width import Keep, logits_group, scatter_mean, slice_weights, width_groups, window
from edgebed.wire.messages import Assignment

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


class Local(msgspec.Struct, frozen=True):
    """What a device's half is told: the width by which it divides, the classes that its loss sees (() for all), and
    whether statistics stay where they are."""

    scale: float = 1.0
    classes: tuple[int, ...] = ()
    static: bool = False


@device_half("heterofl", head=False, resolve=as_output)
def heterofl_half(model: StagedModel, assignment: Assignment, batches: Iterable[Batch]) -> Half:
    """The narrow model, as `Local` says."""
    told, part = msgspec.convert(assignment.options, Local), DevicePart(model, assignment)
    if told.scale < 1:
        scale_outputs(model, told.scale)
    for x, y in batches:
        part.step(loss_of(masked(part.forward(x), told.classes), y), len(y))
    yield from ()
    return without_statistics(part.trained()) if told.static else part.trained()


def scale_outputs(model: StagedModel, width: float) -> None:
    """From now on, divide what each narrow layer gives by the width, before its batch norm."""
    made = [member.tensor for group in width_groups(model).values() for member in group.members if member.dim == 0]
    for path in {tensor.rpartition(".")[0] for tensor in made}:
        layer = model.get_submodule(path)
        if not isinstance(layer, NORMS):
            layer.register_forward_hook(lambda layer, inputs, out: out / width)


def masked(logits: Tensor, classes: Sequence[int]) -> Tensor:
    """0 for the logits of all other classes, as in the paper's code. (…, all classes); () masks none."""
    if not classes:
        return logits
    other = torch.ones(logits.shape[-1], dtype=torch.bool, device=logits.device)
    other[list(classes)] = False
    return logits.masked_fill(other, 0.0)


def as_forward(assignment: Assignment) -> Assignment:
    """Charged as training of the last stage alone: the least work of which all cost models tell."""
    return msgspec.structs.replace(assignment, objective="output", train_from=assignment.stages - 1)


@device_half("statistics", head=False, resolve=as_forward)
def statistics_half(model: StagedModel, assignment: Assignment, batches: Iterable[Batch]) -> Half:
    """The mean over all batches of the means and variances in each batch norm. Nothing is trained."""
    asked, loss, samples, count = copy.deepcopy(model).eval(), 0.0, 0, 0
    for norm in asked.modules():
        if isinstance(norm, NORMS):
            norm.train().reset_running_stats()
            norm.momentum = None  # the plain mean
    for x, y in batches:
        with torch.no_grad():
            loss += float(loss_of(asked(x), y)) * len(y)
        samples, count = samples + len(y), count + 1
    yield from ()
    return Trained({}, loss / max(1, samples), count, extra=statistics_of(asked))


class HeteroFl(FixedWidths):
    name = "heterofl"
    variants = ({"rolling": True}, {"scaler": False, "static_norm": False, "masked_loss": False})

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """`widths`: those of the classes, by default the paper's; `levels`: the share of the fastest device's CPUs that
        each asks for; `rolling`: FedRolex. None: the paper's parts and its plain mean; with `rolling` none of them, and
        devices count by their samples."""

        widths: tuple[Share, ...] = (0.0625, 0.125, 0.25, 0.5, 1.0)
        levels: tuple[Share, ...] = ()
        rolling: bool = False
        scaler: bool | None = None
        static_norm: bool | None = None
        masked_loss: bool | None = None
        aggregate: Aggregate | None = None

    options: Options

    def setup(self, context: Context) -> None:
        super().setup(context)
        chosen, paper = self.options, not self.options.rolling
        self.scaler = paper if chosen.scaler is None else chosen.scaler
        self.static = paper if chosen.static_norm is None else chosen.static_norm
        self.masked = paper if chosen.masked_loss is None else chosen.masked_loss
        self.by_samples = (chosen.aggregate or ("uniform" if paper else "samples")) == "samples"
        self.logits = logits_group(context.model)
        if not self.static:
            self.statistics = {}

    def half(self, device: DeviceView, width: float) -> tuple[str, dict[str, Any]]:
        if not (self.scaler or self.static or self.masked):
            return "output", {}
        classes = tuple(number for number, count in enumerate(device.labels) if count) if self.masked else ()
        told = Local(width if self.scaler else 1.0, classes if len(classes) < len(device.labels) else (), self.static)
        return "heterofl", msgspec.to_builtins(told)

    def keep(self, width: float, round: int, assignment: Assignment) -> Keep:
        return window(self.groups, width, round if self.options.rolling else 0)

    def asks(self, round: int) -> bool:
        """Whether this round, the last one, asks for statistics."""
        return bool(self.statistics) and 0 < round == self.context.rounds - 1

    def draw(self, round: int, devices: Sequence[DeviceView], share: float, seed: int) -> list[DeviceView]:
        return super().draw(round, devices, 1.0 if self.asks(round) else share, seed)

    def plan(self, round: int, devices: Sequence[DeviceView], schedule: Schedule) -> Plan:
        made = super().plan(round, devices, schedule)
        asked: dict[str, Any] = {"objective": "statistics", "keep": {}, "epochs": 1, "options": {}}
        own = {name: msgspec.structs.replace(each, **asked) for name, each in made.assignments.items()}
        return Plan(own) if self.asks(round) else made

    def update_names(self, assignment: Assignment, notes: Any) -> list[str]:
        return [] if assignment.objective == "statistics" else super().update_names(assignment, notes)

    def extra(self, assignment: Assignment) -> dict[str, Stream]:
        asked = self.statistics if assignment.objective == "statistics" else {}
        return {name: Stream(tuple(value.shape), value.dtype) for name, value in asked.items()}

    def merge(self, weights: Weights, contributions: Sequence[Contribution]) -> Weights:
        if any(part.assignment.objective == "statistics" for part in contributions):
            return average(weights, [(float(max(1, part.report.batches)), part.extra) for part in contributions])
        parts = []
        for part in contributions:
            classes = msgspec.convert(part.assignment.options, Local).classes
            rows = dict.fromkeys(self.logits, classes) if classes else {}
            share = float(part.samples) if self.by_samples else 1.0
            parts.append((share, slice_weights(part.weights, self.logits, rows), {**part.assignment.keep, **rows}))
        return {**scatter_mean(weights, {**self.groups, **self.logits}, parts), **self.statistics}

    def evaluate(self, weights: Weights, x: Tensor, y: Tensor, accelerator: torch.device) -> Score:
        """With the statistics of the devices' data; before they were asked for, with those of each batch of x."""
        if not self.statistics or any(not torch.equal(weights[name], value) for name, value in self.statistics.items()):
            return super().evaluate(weights, x, y, accelerator)
        bare = copy.deepcopy(self.context.model)
        for norm in bare.modules():
            if isinstance(norm, NORMS):
                norm.running_mean = norm.running_var = None
        known = {name: value for name, value in weights.items() if name not in self.statistics}
        batch = 499 if len(y) % 500 == 1 else 500  # one sample alone has no statistics
        return evaluate(bare, known, x, y, accelerator, batch)
