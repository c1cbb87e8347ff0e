"""Counts what a model costs at each cut, without running it: parameters, bytes, floating-point operations.

Computes on torch's meta device, which knows shapes but holds no values, so the largest model takes one second.
Operations are those of convolutions and matrix products; a multiply-add counts as two (torch's counter). They are
counted per stage. A device half is a sum of stages, also if the device trains only its last stages (FedPMT).

Methods plan with a coarser figure: `stage_flops`, the forward operations of one sample, with backward taken as twice
forward, as in FedPMT (§V-A). They use only ratios of these numbers.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import msgspec
import torch
from torch import Tensor, autograd, nn

from edgebed.errors import UsageError
from edgebed.models.learning import blank_x
from edgebed.models.staged import ModelPlugin, StagedModel, Weights, head_name
from edgebed.models.width import Groups, narrow_model, ordered_keep
from edgebed.wire.settings import LearningTask

FLOAT = 4  # bytes of a float32
Shape = Sequence[int]


class PartCosts(msgspec.Struct, frozen=True):
    """One stage, or one head. Operations are per batch."""

    name: str
    parameters: int
    bytes: int  # weights and buffers, as sent uncompressed
    forward_flops: int
    backward_flops: int  # including the gradient of the input
    last_backward_flops: int  # without the gradient of the input: backpropagation stops here


class CutCosts(msgspec.Struct, frozen=True):
    """One way to cut the model. The device half holds the stages before the cut and the cut's head, the server half
    holds the rest. Operations are per batch."""

    cut: int
    after: str  # name of the device's last stage
    feature_shape: tuple[int, ...]  # of one sample; empty if the device holds the whole model
    feature_bytes: int  # per batch, float32, without labels
    device_parameters: int
    device_bytes: int  # weights and buffers, as sent uncompressed
    forward_flops: int  # device half
    training_flops: int  # device half, forward and backward
    server_flops: int  # server half, forward and backward, including the gradient of the features


class ModelCosts(msgspec.Struct, frozen=True):
    """The costs for one input shape, number of classes and batch size. `parameters` does not include the heads."""

    name: str
    summary: str
    input_shape: tuple[int, ...]
    classes: int
    batch: int
    parameters: int
    head_parameters: int
    split_points: tuple[int, ...]
    cuts: list[CutCosts]  # the last one is the whole model on the device
    stages: list[PartCosts]
    heads: dict[int, PartCosts]  # by cut
    uncut: str = ""  # why a network of one stage has no more, and what can be done

    def training_flops(self, stages: int, train_from: int = 0, *, head: bool = False) -> int:
        """Operations per batch on a device that holds `stages` stages and trains those from `train_from` on: forward
        through all, backward down to the first trained one (`Assignment` in papers.md §0)."""
        held = [*self.stages[:stages], *([self.heads[stages]] if head else [])]
        trained = held[train_from:]
        backward = sum(part.backward_flops for part in trained[1:])
        return sum(part.forward_flops for part in held) + trained[0].last_backward_flops + backward


def model_costs(plugin: ModelPlugin, task: LearningTask, batch: int) -> ModelCosts:
    """Count everything. Raises UsageError if the model cannot take such an input."""
    plugin.check_takes(task)
    uncut = ""
    try:
        with torch.device("meta"):
            model = plugin.build(task)
        uncut = model.uncut
        return built_costs(model, plugin.name, plugin.summary, batch)
    except (RuntimeError, ValueError, IndexError) as error:
        if uncut:
            raise UsageError(f"the operations of {plugin.name} cannot be counted: {uncut}") from None
        shape = "x".join(map(str, task.input_shape))
        raise UsageError(
            f"{plugin.name} cannot take an input of {shape}: {error}", hint="give a larger shape, or another model"
        ) from None


def built_costs(model: StagedModel, name: str, summary: str, batch: int) -> ModelCosts:
    """Count a model that is already built, also a narrow one. Does not change it."""
    with torch.device("meta"):
        bare = copy.deepcopy(model).to("meta").train()
        stages, heads, shapes = _parts(bare, blank_x(model.task, batch))
    return ModelCosts(
        name=name,
        summary=summary,
        input_shape=model.input_shape,
        classes=model.classes,
        batch=batch,
        parameters=sum(part.parameters for part in stages),
        head_parameters=sum(part.parameters for part in heads.values()),
        split_points=model.split_points,
        cuts=_cuts(stages, heads, shapes, batch),
        stages=stages,
        heads=heads,
        uncut=model.uncut,
    )


def _parts(model: StagedModel, x: Tensor) -> tuple[list[PartCosts], dict[int, PartCosts], list[tuple[int, ...]]]:
    """Costs of every stage and head, and the shape of one sample after each stage."""
    stages: list[PartCosts] = []
    heads: dict[int, PartCosts] = {}
    shapes = []
    for cut, name in enumerate(model.stage_names, 1):
        part, x = _count(model.get_submodule(name), name, x)
        stages.append(part)
        shapes.append(tuple(x.shape[1:]))
        if cut in model.cuts_with_head:
            heads[cut], _ = _count(model.head(cut), head_name(cut), x)
    return stages, heads, shapes


def _cuts(
    stages: list[PartCosts], heads: dict[int, PartCosts], shapes: list[tuple[int, ...]], batch: int
) -> list[CutCosts]:
    """The costs of every cut, as sums of stages and heads."""
    found = []
    for cut, (stage, shape) in enumerate(zip(stages, shapes, strict=True), 1):
        device = [*stages[:cut], *([heads[cut]] if cut in heads else [])]
        features = shape if cut < len(stages) else ()
        forward = sum(part.forward_flops for part in device)
        found.append(
            CutCosts(
                cut=cut,
                after=stage.name,
                feature_shape=features,
                feature_bytes=batch * math.prod(features) * FLOAT if features else 0,
                device_parameters=sum(part.parameters for part in device),
                device_bytes=sum(part.bytes for part in device),
                forward_flops=forward,
                training_flops=forward
                + device[0].last_backward_flops
                + sum(part.backward_flops for part in device[1:]),
                server_flops=sum(part.forward_flops + part.backward_flops for part in stages[cut:]),
            )
        )
    return found


def _count(module: nn.Module, name: str, x: Tensor) -> tuple[PartCosts, Tensor]:
    """Costs of a stage or head for the batch `x`, and its output."""
    counter = _flop_counter()
    x, parameters = x.detach(), list(module.parameters())
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if x.is_floating_point():  # tokens have no gradient
        x.requires_grad_()
    with counter:
        out: Tensor = module(x)
        forward = counter.get_total_flops()
        if trained:
            autograd.backward(out.sum(), inputs=trained, retain_graph=True)
        last = counter.get_total_flops() - forward
        if x.requires_grad:
            autograd.backward(out.sum())
    part = PartCosts(
        name=name,
        parameters=sum(parameter.numel() for parameter in parameters),
        bytes=size_bytes(module.state_dict()),
        forward_flops=forward,
        backward_flops=counter.get_total_flops() - forward - last,
        last_backward_flops=last,
    )
    return part, out.detach()


def _flop_counter() -> Any:
    """torch's counter of operations. Imported here because the import takes a second and devices never need it."""
    from torch.utils.flop_counter import FlopCounterMode

    return FlopCounterMode(display=False, custom_mapping={torch.ops.aten.convolution_backward: _backward_flops})


def _backward_flops(grad: Shape, x: Shape, weight: Shape, *rest: Any, **_: Any) -> int:
    """Backward operations of a convolution: each requested gradient costs as much as the forward pass. torch's own
    count of the weight gradient of a depthwise convolution is `groups` times too high."""
    wanted = rest[-1]  # which gradients are requested: input, weight, bias
    forward = 2 * math.prod(grad) * math.prod(weight[1:])
    return forward * (bool(wanted[0]) + bool(wanted[1]))


# ---- what methods plan with ----


def stage_flops(model: StagedModel) -> list[int]:
    """Forward operations of each stage for one sample; 1 where a stage has none. The model is not changed. Raises
    UsageError: it needs values, not shapes alone."""
    with torch.device("meta"), torch.no_grad():
        bare = copy.deepcopy(model).to("meta").eval()
        x = blank_x(model.task, 1)
        flops: list[int] = []
        for name in model.stage_names:
            try:
                with _flop_counter() as counter:
                    x = bare.get_submodule(name)(x)
            except RuntimeError as error:
                raise UsageError(f"operations cannot be counted without values: {error}") from None
            flops.append(max(1, counter.get_total_flops()))
    return flops


def cut_costs(model: StagedModel) -> list[int]:
    """Forward operations of the device half (without head) at cuts 1..L."""
    return list(accumulate(stage_flops(model)))


def partial_costs(model: StagedModel, train_from: Sequence[int]) -> list[float]:
    """Cost of a batch where back-propagation reaches the stages after each of `train_from`, relative to all stages.

    cost = Σ_l F_l + 2 Σ_{l > train_from} F_l, F_l the forward operations of stage l.
    """
    flops = stage_flops(model)
    return [(sum(flops) + 2 * sum(flops[first:])) / (3 * sum(flops)) for first in train_from]


def width_costs(model: StagedModel, groups: Groups, fractions: Sequence[float]) -> list[float]:
    """Cost of a batch on the narrow model that keeps each of `fractions` of every group, relative to the full one."""
    full = sum(stage_flops(model))
    narrow = [narrow_model(model, ordered_keep(groups, fraction)) for fraction in fractions if fraction < 1]
    return [sum(stage_flops(each)) / full for each in narrow] + [1.0 for fraction in fractions if fraction >= 1]


def size_bytes(weights: Weights) -> int:
    """Bytes of these weights, as sent uncompressed."""
    return sum(value.numel() * value.element_size() for value in weights.values())
