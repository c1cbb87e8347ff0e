"""VGG-16 for 32x32 (S²FL): thirteen 3x3 convolutions with five pools, and three fully connected layers.

Simonyan and Zisserman's network D with a batch norm after each convolution (`batch_norm: false` removes it) and fully
connected layers 512-512-256-classes on the averaged 512 channels: 15,119,690 parameters with 10 classes, the number
that gives all of FedAvg's bytes in S²FL's table 3 (`edgebed reproduce s2fl-eq1`). A stage is a convolution with the
layers up to the next one. Where a map has only one pixel, the pool is left out, so that smaller pictures can be used
**[ours]**. The split points are the second, third and fourth pool: the last follows from SFL's bytes in table 3, the
other two are not printed **[ours]**.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from itertools import pairwise
from typing import ClassVar

import msgspec
from torch import nn

from edgebed.models.fcnn import layer
from edgebed.models.layers import Positive
from edgebed.models.staged import ModelPlugin, StagedModel, pooled_head
from edgebed.wire.settings import LearningTask

WIDTHS = (1, 1, 2, 2, 4, 4, 4, 8, 8, 8, 8, 8, 8)  # in multiples of the first
POOLS = (2, 4, 7, 10, 13)  # convolutions with a pool behind them
HIDDEN = (8, 4)  # of the fully connected layers
SPLIT_POINTS = (4, 7, 10)


class Vgg16(ModelPlugin):
    name = "vgg16"
    summary = "thirteen convolutions (S²FL)"
    small: ClassVar[Mapping[str, object]] = {"width": 4}

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        width: Positive = 64  # channels of the first convolution; up to 8 times as many follow
        batch_norm: bool = True

    options: Options

    def build(self, task: LearningTask) -> StagedModel:
        outs = [task.input_shape[0], *(self.options.width * times for times in WIDTHS)]
        side = min(task.input_shape[1:])
        stages: list[tuple[str, nn.Module]] = []
        for number, (channels, out) in enumerate(pairwise(outs), 1):
            pool = number in POOLS and side > 1
            side = side // 2 if pool else side
            stages.append((f"conv{number}", self.stage(channels, out, pool)))
        stages.append(("top", self.top(outs[-1], task.classes)))
        heads = {cut: pooled_head(out, task.classes) for cut, out in enumerate(outs[1:], 1)}
        return StagedModel(stages, heads, task, split_points=SPLIT_POINTS)

    def stage(self, channels: int, out: int, pool: bool) -> nn.Sequential:
        """Convolution, batch norm, ReLU, pool."""
        conv = nn.Conv2d(channels, out, 3, padding=1)
        nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
        if conv.bias is not None:
            nn.init.zeros_(conv.bias)
        parts: dict[str, nn.Module] = {"conv": conv}
        if self.options.batch_norm:
            parts["bn"] = nn.BatchNorm2d(out)
        parts["relu"] = nn.ReLU()
        if pool:
            parts["pool"] = nn.MaxPool2d(2)
        return nn.Sequential(OrderedDict(parts))

    def top(self, channels: int, classes: int) -> nn.Sequential:
        """Pool, and the fully connected layers."""
        first, second = (self.options.width * times for times in HIDDEN)
        hidden = layer(channels, first), layer(first, second)
        return nn.Sequential(nn.AdaptiveAvgPool2d(1), *hidden, nn.Linear(second, classes))
