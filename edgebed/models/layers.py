"""Parts that several families of networks share: a convolution with its batch norm, and residual blocks."""

from __future__ import annotations

from collections import OrderedDict
from typing import Annotated, ClassVar

import msgspec
from torch import Tensor, nn

Positive = Annotated[int, msgspec.Meta(ge=1)]
"""Type of an option that counts channels, neurons or blocks."""


class Block(nn.Module):
    """relu(layers(x) + x), with x projected where the shape changes. (B, C, H, W) -> (B, out, H/stride, W/stride)."""

    expansion: ClassVar[int]

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = width * self.expansion
        self.layers = self.make_layers(channels, width, stride)
        self.project: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.project = nn.Sequential(convolution(channels, out, 1, stride))
        self.relu = nn.ReLU()

    def make_layers(self, channels: int, width: int, stride: int) -> nn.Sequential:
        raise NotImplementedError  # the two kinds of block

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.relu(self.layers(x) + self.project(x))
        return out


class Basic(Block):
    """3x3, 3x3."""

    expansion = 1

    def make_layers(self, channels: int, width: int, stride: int) -> nn.Sequential:
        return nn.Sequential(convolution(channels, width, 3, stride), nn.ReLU(), convolution(width, width, 3))


class Bottleneck(Block):
    """1x1, 3x3, 1x1 with expansion 4."""

    expansion = 4

    def make_layers(self, channels: int, width: int, stride: int) -> nn.Sequential:
        return nn.Sequential(
            convolution(channels, width, 1),
            nn.ReLU(),
            convolution(width, width, 3, stride),
            nn.ReLU(),
            convolution(width, width * self.expansion, 1),
        )


def stem(channels: int, width: int) -> nn.Sequential:
    """A 3x3 convolution with ReLU."""
    return nn.Sequential(convolution(channels, width, 3), nn.ReLU())


def convolution(channels: int, out: int, size: int, stride: int = 1, *, groups: int = 1) -> nn.Sequential:
    """A convolution without bias that keeps the map's size (at stride 1), and its batch norm."""
    conv = nn.Conv2d(channels, out, size, stride, padding=size // 2, groups=groups, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(OrderedDict(conv=conv, bn=nn.BatchNorm2d(out)))
