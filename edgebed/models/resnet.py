"""ResNet-56 and ResNet-110 in eight modules, and a small variant (papers.md §1; DTFL tables 8-10).

    md1         3x3 stem
    md2, md3    residual blocks of the first width
    md4, md5    second width, stride 2 at the first block of md4
    md6, md7    third width, stride 2 at the first block of md6
    md8         global average pool and fc

A block whose output has another shape than its input has a 1x1 projection. The paper lists a max-pool in md1. It is
left out **[ours]**: published ResNets for CIFAR have none, and the paper's own channel table contradicts it.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise
from typing import Annotated, ClassVar, Literal

import msgspec
from torch import nn

from edgebed.models.layers import Basic, Block, Bottleneck, Positive, stem
from edgebed.models.staged import ModelPlugin, StagedModel, pooled_head
from edgebed.wire.settings import LearningTask

Widths = tuple[int, int, int]
SPLIT_POINTS = (1, 3, 5)  # the stem and where the map halves; the server keeps the last width **[ours]**


def eight_modules(
    block: type[Block], widths: Widths, blocks: int, task: LearningTask, head_blocks: int = 0
) -> StagedModel:
    """Stem, two modules of `blocks` blocks per width, classifier; a head at each of the seven cuts: `head_blocks`
    blocks of the width at the cut, pool, fc."""
    outs = [widths[0], *(width * block.expansion for width in widths for _ in "12")]  # channels after md1..md7
    stages: list[tuple[str, nn.Module]] = [("md1", stem(task.input_shape[0], widths[0]))]
    for index, (channels, out) in enumerate(pairwise(outs)):
        width, stride = widths[index // 2], 2 if index in (2, 4) else 1
        first = block(channels, width, stride)
        rest = (block(out, width, 1) for _ in range(blocks - 1))
        stages.append((f"md{index + 2}", nn.Sequential(first, *rest)))
    stages.append(("md8", pooled_head(outs[-1], task.classes)))
    heads: dict[int, nn.Module] = {}
    for cut, out in enumerate(outs, 1):
        width = widths[max(0, cut - 2) // 2]
        heads[cut] = (
            _head(block, out, width, head_blocks, task.classes) if head_blocks else pooled_head(out, task.classes)
        )
    return StagedModel(stages, heads, task, split_points=SPLIT_POINTS)


def _head(block: type[Block], channels: int, width: int, blocks: int, classes: int) -> nn.Module:
    out = width * block.expansion
    made = [block(channels if number == 0 else out, width, 1) for number in range(blocks)]
    return nn.Sequential(OrderedDict(blocks=nn.Sequential(*made), top=pooled_head(out, classes)))


class ResNet56(ModelPlugin):
    name = "resnet56"
    summary = "eight modules of bottlenecks (DTFL table 8)"
    blocks: ClassVar[int] = 3  # in each of md2 to md7

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        head_blocks: Annotated[int, msgspec.Meta(ge=0)] = 0  # residual blocks in front of a head's pool and fc

    options: Options

    def build(self, task: LearningTask) -> StagedModel:
        return eight_modules(Bottleneck, (16, 32, 64), self.blocks, task, self.options.head_blocks)


class ResNet110(ResNet56):
    name = "resnet110"
    summary = "eight modules of bottlenecks, twice as deep (DTFL table 9)"
    blocks = 6


class ResNetTiny(ModelPlugin):
    """The same eight modules, small: for the demo, tests and weak machines."""

    name = "resnet-tiny"
    summary = "the eight modules in small, for the demo and weak machines"

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        widths: tuple[Positive, Positive, Positive] = (8, 16, 32)
        blocks: Positive = 1
        block: Literal["basic", "bottleneck"] = "basic"
        head_blocks: Annotated[int, msgspec.Meta(ge=0)] = 0

    options: Options

    def build(self, task: LearningTask) -> StagedModel:
        block = Basic if self.options.block == "basic" else Bottleneck
        options = self.options
        return eight_modules(block, options.widths, options.blocks, task, options.head_blocks)
