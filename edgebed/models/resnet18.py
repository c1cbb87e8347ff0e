"""ResNet-18 for CIFAR with exits after chosen residual blocks (early-exit paper, §4.1).

    stem          3x3 convolution, no pool (the 7x7 and its pool are for ImageNet)
    block1..8     two 3x3 convolutions; 64, 64, 128, 128, 256, 256, 512, 512 channels, stride 2 at blocks 3, 5 and 7
    top           global average pool and fc: the last exit

One stage per block, so that a node of the tree holds the stages up to its exit: the exit after block b is the head at
cut b+1, exits 1..E are `cuts_with_head` and then the top. The paper puts exits after blocks 2 and 5 for CIFAR-10 and 5
and 7 for CIFAR-100; it does not print an exit's layers: global average pool and one fc, as at the top **[ours]**.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, ClassVar

import msgspec
from torch import nn

from edgebed.errors import UsageError
from edgebed.models.layers import Basic, Positive, stem
from edgebed.models.staged import ModelPlugin, StagedModel, pooled_head
from edgebed.wire.settings import LearningTask

BLOCKS = 8
Exit = Annotated[int, msgspec.Meta(ge=1, le=BLOCKS)]


class ResNet18(ModelPlugin):
    name = "resnet18"
    summary = "eight basic blocks with exits where one likes (early-exit paper)"
    small: ClassVar[Mapping[str, object]] = {"width": 4}

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        exits: tuple[Exit, ...] = (2, 5)  # residual blocks with an exit behind them
        width: Positive = 64  # channels of the stem and the first blocks; 2, 4 and 8 times as many follow

    options: Options

    def build(self, task: LearningTask) -> StagedModel:
        exits, width = self.options.exits, self.options.width
        if list(exits) != sorted(set(exits)):
            raise UsageError(f"exits {list(exits)} of resnet18", hint="give increasing numbers of blocks, as in [2, 5]")
        outs = [width, *(width * 2 ** (block // 2) for block in range(BLOCKS))]  # channels after stem, block1, ...
        stages: list[tuple[str, nn.Module]] = [("stem", stem(task.input_shape[0], width))]
        for block, (channels, out) in enumerate(pairwise(outs), 1):
            stages.append((f"block{block}", Basic(channels, out, 1 if channels == out else 2)))
        stages.append(("top", pooled_head(outs[-1], task.classes)))
        heads = {block + 1: pooled_head(outs[block], task.classes) for block in exits}
        return StagedModel(stages, heads, task, split_points=(3, 5, 7))
