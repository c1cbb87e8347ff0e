"""MobileNet V1 for 32x32 (S²FL): a stem and thirteen pairs of a depthwise and a pointwise convolution.

Howard et al. 2017, with the strides of its usual CIFAR form: 1 at the stem and at the first pair, so that the last map
of a 32x32 picture is 2x2. A stage is a pair. S²FL names no split points: they are the last pairs of 128, 256 and 512
channels, in front of the strides **[ours]**.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import ClassVar

import msgspec
from torch import nn

from edgebed.models.layers import Positive, convolution, stem
from edgebed.models.staged import ModelPlugin, StagedModel, pooled_head
from edgebed.wire.settings import LearningTask

WIDTHS = (2, 4, 4, 8, 8, 16, 16, 16, 16, 16, 16, 32, 32)  # channels after each pair, in multiples of the stem's
STRIDED = (2, 4, 6, 12)  # pairs of stride 2
SPLIT_POINTS = (4, 6, 12)


class MobileNet(ModelPlugin):
    name = "mobilenet"
    summary = "thirteen depthwise separable convolutions (S²FL)"
    small: ClassVar[Mapping[str, object]] = {"width": 2}

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        width: Positive = 32  # channels of the stem; up to 32 times as many follow

    options: Options

    def build(self, task: LearningTask) -> StagedModel:
        width = self.options.width
        outs = [width, *(width * times for times in WIDTHS)]
        stages: list[tuple[str, nn.Module]] = [("stem", stem(task.input_shape[0], width))]
        for number, (channels, out) in enumerate(pairwise(outs), 1):
            stages.append((f"pair{number}", pair(channels, out, 2 if number in STRIDED else 1)))
        stages.append(("top", pooled_head(outs[-1], task.classes)))
        heads = {cut: pooled_head(out, task.classes) for cut, out in enumerate(outs, 1)}
        return StagedModel(stages, heads, task, split_points=SPLIT_POINTS)


def pair(channels: int, out: int, stride: int) -> nn.Sequential:
    """3x3 within each channel, then 1x1 across them, each with batch norm and ReLU."""
    return nn.Sequential(
        convolution(channels, channels, 3, stride, groups=channels),
        nn.ReLU(),
        convolution(channels, out, 1),
        nn.ReLU(),
    )
