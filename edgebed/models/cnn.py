"""FedPMT's convolutional networks for MNIST and CIFAR-10 (footnote 7), and a small one for 8x8 digits.

    cnn-mnist      5x5x8,  pool, 5x5x16, pool, 256 -> 128 -> 10
    cnn-cifar10    5x5x16, pool, 5x5x32, pool, 800 -> 500 -> 300 -> 10
    cnn-small      3x3x8,  pool, 3x3x16, pool, 64 -> 32 -> 10 on 8x8, with padding **[ours]**

No padding, ReLU behind every layer but the last. A stage is a layer with trainable weights, so that `train_from` says
which layers back-propagation reaches (papers.md §3).
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise
from typing import ClassVar

from torch import nn

from edgebed.errors import UsageError
from edgebed.models.fcnn import layer
from edgebed.models.staged import ModelPlugin, StagedModel, flat_head, pooled_head
from edgebed.wire.settings import LearningTask


class Cnn(ModelPlugin):
    """Base of the three: convolutions with a 2x2 pool each, then fully connected layers."""

    kernel: ClassVar[int] = 5
    padding: ClassVar[int] = 0
    filters: ClassVar[tuple[int, ...]]
    hidden: ClassVar[tuple[int, ...]]

    def build(self, task: LearningTask) -> StagedModel:
        channels = [task.input_shape[0], *self.filters]
        stages = [(f"conv{number}", self.convolution(*pair)) for number, pair in enumerate(pairwise(channels), 1)]
        heads = {cut: pooled_head(width, task.classes) for cut, width in enumerate(self.filters, 1)}
        rows, columns = self.map_after_pools(task.input_shape)
        widths = [self.filters[-1] * rows * columns, *self.hidden]
        for number, (before, after) in enumerate(pairwise(widths), 1):
            stages.append((f"fc{number}", layer(before, after)))
            heads[len(stages)] = flat_head(after, task.classes)
        stages.append((f"fc{len(widths)}", flat_head(widths[-1], task.classes)))
        return StagedModel(stages, heads, task)

    def convolution(self, channels: int, filters: int) -> nn.Module:
        conv = nn.Conv2d(channels, filters, self.kernel, padding=self.padding)
        return nn.Sequential(OrderedDict(conv=conv, relu=nn.ReLU(), pool=nn.MaxPool2d(2)))

    def map_after_pools(self, input_shape: tuple[int, ...]) -> tuple[int, int]:
        """Rows and columns that the first fully connected layer reads. Raises UsageError where none are left."""
        lost = self.kernel - 1 - 2 * self.padding
        rows, columns = input_shape[1:]
        for _ in self.filters:
            rows, columns = (rows - lost) // 2, (columns - lost) // 2
        if min(rows, columns) < 1:
            shape, least = "x".join(map(str, input_shape)), self.smallest_side(lost)
            raise UsageError(
                f"{self.name} has no pixel of a {shape} picture left after its pools",
                hint=f"give pictures of {least}x{least} or more, or take cnn-small, fcnn or resnet-tiny",
            )
        return rows, columns

    def smallest_side(self, lost: int) -> int:
        side = 1
        for _ in self.filters:
            side = 2 * side + lost
        return side


class CnnMnist(Cnn):
    name = "cnn-mnist"
    summary = "two convolutions and two layers (FedPMT)"
    filters, hidden = (8, 16), (128,)


class CnnCifar10(Cnn):
    name = "cnn-cifar10"
    summary = "two convolutions and three layers (FedPMT)"
    filters, hidden = (16, 32), (500, 300)


class CnnSmall(Cnn):
    name = "cnn-small"
    summary = "two convolutions and two layers, for 8x8"
    kernel, padding = 3, 1
    filters, hidden = (8, 16), (32,)
