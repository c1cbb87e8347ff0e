"""CIFAR-10: 60,000 colour pictures of 32x32 in 10 classes, through torchvision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from edgebed.datasets.base import DataSet, Part, Source
from edgebed.vision import both_parts


class Cifar10(DataSet):
    name = "cifar10"
    summary = "50,000 + 10,000 colour pictures in 10 classes, 3x32x32"

    def open(self, root: Path, seed: int) -> Source:
        train, test = both_parts("CIFAR10", root, files="the Python version of CIFAR-10 as cifar-10-batches-py/")
        mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
        return Source(colour_part(train), colour_part(test), list(train.classes), mean, std)


def colour_part(part: Any) -> Part:
    """A part of torchvision's CIFAR family: `data` (N, 32, 32, 3) uint8 and `targets`."""
    data = torch.from_numpy(part.data)
    return Part(torch.tensor(part.targets), lambda rows: data[rows].permute(0, 3, 1, 2))
