"""FedPMT's fully connected network: 784-400-300-200-100-10 with ReLU (footnote 6). Takes samples of any shape.

A stage is a layer, so that `train_from` says which layers back-propagation reaches (papers.md §3).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from itertools import pairwise

import msgspec
from torch import nn

from edgebed.models.layers import Positive
from edgebed.models.staged import ModelPlugin, StagedModel, flat_head
from edgebed.wire.settings import LearningTask


class Fcnn(ModelPlugin):
    name = "fcnn"
    summary = "five fully connected layers (FedPMT)"
    takes = ("pictures", "rows of a table")

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        hidden: tuple[Positive, ...] = (400, 300, 200, 100)

    options: Options

    def build(self, task: LearningTask) -> StagedModel:
        widths = [math.prod(task.input_shape), *self.options.hidden]
        stages = [(f"fc{number}", layer(before, after)) for number, (before, after) in enumerate(pairwise(widths), 1)]
        stages.append((f"fc{len(widths)}", flat_head(widths[-1], task.classes)))
        heads = {cut: flat_head(width, task.classes) for cut, width in enumerate(widths[1:], 1)}
        return StagedModel(stages, heads, task)


def layer(before: int, after: int) -> nn.Module:
    """One hidden layer. (B, ...) -> (B, after)."""
    return nn.Sequential(OrderedDict(flatten=nn.Flatten(), fc=nn.Linear(before, after), relu=nn.ReLU()))
