"""ResNet-8 for 32x32 (S²FL): a stem, three residual blocks of two 3x3 convolutions, a classifier.

The CIFAR network of He et al. 2016 with n = 1: 16, 32 and 64 channels, halving the map at the second and third block,
with a 1x1 projection where the shape changes. S²FL names no split points: they are the stem and the first two blocks,
so that the server always keeps a block to train on the balanced groups **[ours]**.
"""

from __future__ import annotations

import msgspec
from torch import nn

from edgebed.models.layers import Basic, Positive, stem
from edgebed.models.staged import ModelPlugin, StagedModel, pooled_head
from edgebed.wire.settings import LearningTask


class ResNet8(ModelPlugin):
    name = "resnet8"
    summary = "three basic blocks (S²FL)"

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        width: Positive = 16  # channels of the stem; the blocks have 1, 2 and 4 times as many

    options: Options

    def build(self, task: LearningTask) -> StagedModel:
        width = self.options.width
        stages: list[tuple[str, nn.Module]] = [
            ("stem", stem(task.input_shape[0], width)),
            ("block1", Basic(width, width, 1)),
            ("block2", Basic(width, 2 * width, 2)),
            ("block3", Basic(2 * width, 4 * width, 2)),
            ("top", pooled_head(4 * width, task.classes)),
        ]
        outs = (width, width, 2 * width, 4 * width)
        heads = {cut: pooled_head(out, task.classes) for cut, out in enumerate(outs, 1)}
        return StagedModel(stages, heads, task, split_points=(1, 2, 3))
