"""MNIST and Fashion-MNIST: 70,000 pictures of 28x28 in 10 classes each, through torchvision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from edgebed.datasets.base import DataSet, Part, Source
from edgebed.vision import both_parts


class Mnist(DataSet):
    name = "mnist"
    summary = "60,000 + 10,000 handwritten digits, 1x28x28"

    def open(self, root: Path, seed: int) -> Source:
        train, test = both_parts("MNIST", root, files="the idx files of MNIST as MNIST/raw/")
        names = [str(digit) for digit in range(10)]
        return Source(_part(train), _part(test), names, (0.1307,), (0.3081,))


class FashionMnist(DataSet):
    name = "fashion-mnist"
    summary = "60,000 + 10,000 pieces of clothing, 1x28x28"

    def open(self, root: Path, seed: int) -> Source:
        train, test = both_parts("FashionMNIST", root, files="the idx files of Fashion-MNIST as FashionMNIST/raw/")
        return Source(_part(train), _part(test), list(train.classes), (0.2860,), (0.3530,))


def _part(part: Any) -> Part:
    """From a part of torchvision's MNIST family: `data` (N, 28, 28) uint8 and `targets` (N,)."""
    data: Tensor = part.data.unsqueeze(1)
    return Part(part.targets.long(), data.__getitem__)
