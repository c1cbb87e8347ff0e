"""What a batch costs in counted operations: FLOPs of any model (S²FL), or the operations of FedPMT's table II."""

from __future__ import annotations

from statistics import mean

import torch
from torch import nn

from edgebed.errors import UsageError
from edgebed.methods.base import trains_head
from edgebed.models.operations import Convolution, cnn_operations, fcnn_operations
from edgebed.models.staged import ModelPlugin, StagedModel
from edgebed.models.width import width_groups
from edgebed.wire.messages import Assignment
from orchestrator.model_costs import model_costs

COUNTED = 2
"""Samples of the batch that is counted: batch norm needs more than one."""


class Flops:
    """FLOPs per sample: multiply-adds count two (`orchestrator.model_costs`)."""

    def __init__(self, plugin: ModelPlugin, model: StagedModel) -> None:
        self._costs = model_costs(plugin, model.input_shape, model.classes, COUNTED)
        self._model = model

    def device(self, assignment: Assignment) -> tuple[float, float]:
        """Forward until the features, and the rest."""
        stages = assignment.stages
        total = self._costs.training_flops(stages, assignment.train_from, head=trains_head(assignment))
        forward = sum(stage.forward_flops for stage in self._costs.stages[:stages])
        share = self._width_share(assignment)
        return forward * share / COUNTED, (total - forward) * share / COUNTED

    def server(self, assignment: Assignment) -> float:
        """Forward and backward of the stages above the cut; nothing where there are none."""
        upper = self._costs.stages[assignment.stages :]
        return sum(stage.forward_flops + stage.backward_flops for stage in upper) / COUNTED

    def _width_share(self, assignment: Assignment) -> float:
        """A layer whose inputs and outputs are both narrowed costs the square of what is kept **[ours]**."""
        if not assignment.keep:
            return 1.0
        groups = width_groups(self._model)
        return mean(len(kept) / groups[name].size for name, kept in assignment.keep.items()) ** 2


class Operations:
    """FedPMT's count for a network of convolutions and fully connected layers, one to a stage.

    Raises:
        UsageError: the model is another one.
    """

    def __init__(self, model: StagedModel) -> None:
        self._convolutions: list[Convolution] = []
        self._widths: list[int] = []
        x = torch.zeros(2, *model.input_shape)
        for name in model.stage_names:
            stage = model.get_submodule(name)
            self._add(name, stage, x)
            with torch.no_grad():
                x = stage.eval()(x)
        if not self._widths:
            raise UsageError("FedPMT's operations count needs fully connected layers", cure=_CURE)

    def batch(self, assignment: Assignment, samples: int) -> tuple[float, float]:
        """Forward, and the rest, of one mini-batch."""
        total = self._count(samples, assignment.train_from)
        layers = len(self._convolutions) + len(self._widths) - 1
        last = self._count(samples, layers - 1)  # forward and as little backward as there can be
        return float(min(total, last)), float(max(0, total - last))

    def server(self, assignment: Assignment, samples: int) -> float:
        """What the stages above the cut cost: the whole less nothing but them."""
        whole, below = self._count(samples, 0), self._count(samples, min(assignment.stages, len(self._widths) - 1))
        return float(max(0, whole - below))

    def _count(self, samples: int, train_from: int) -> int:
        if self._convolutions:
            return cnn_operations(self._convolutions, self._widths, samples, train_from)
        return fcnn_operations(self._widths, samples, train_from)

    def _add(self, name: str, stage: nn.Module, x: torch.Tensor) -> None:
        layers = [m for m in stage.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
        if len(layers) != 1:
            raise UsageError(f"stage {name} has {len(layers)} layers with weights, FedPMT's count one", cure=_CURE)
        layer = layers[0]
        if isinstance(layer, nn.Linear):
            self._widths += [layer.out_features] if self._widths else [layer.in_features, layer.out_features]
            return
        side = (x.shape[-1] + 2 * int(layer.padding[0]) - layer.kernel_size[0]) // layer.stride[0] + 1
        self._convolutions.append(Convolution(layer.in_channels, layer.out_channels, layer.kernel_size[0], side))


_CURE = "take a model of fcnn or cnn, or simulation.cost: flops"
