"""What the stages of a model cost, as a method plans with it: operations of each, and ratios to the whole. Pure.

Forward operations are counted on one sample; backward is taken as twice forward, as FedPMT has it (§V-A). Only ratios
of these numbers are used. `edgebed models` prints a finer count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from edgebed.models.staged import StagedModel, Weights
from edgebed.models.width import Groups, narrow_model, ordered_keep


def stage_flops(model: StagedModel) -> list[int]:
    """Forward operations of each stage for one sample, those of convolutions and fully connected layers; 1 where a
    stage has none. torch's own counter counts the same, and takes seconds to load."""
    counted = dict.fromkeys(model.stage_names, 0)

    def count(stage: str, weight: Tensor, out: Tensor) -> None:
        counted[stage] += 2 * out.numel() * math.prod(weight.shape[1:])

    hooks = [
        module.register_forward_hook(lambda _, args, out, stage=name, weight=module.weight: count(stage, weight, out))
        for name in model.stage_names
        for module in model.get_submodule(name).modules()
        if isinstance(module, nn.Conv2d | nn.Linear)
    ]
    was = model.training
    with torch.no_grad():
        model.stages(0, len(model)).eval()(torch.zeros(1, *model.input_shape))
    model.train(was)
    for hook in hooks:
        hook.remove()
    return [max(1, counted[name]) for name in model.stage_names]


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
    """Bytes of these weights, as sent."""
    return sum(value.numel() * value.element_size() for value in weights.values())
