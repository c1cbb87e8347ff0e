"""CIFAR-10 and CIFAR-100: 60,000 colour pictures of 32x32 each, through torchvision."""

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
        return Source(_part(train), _part(test), list(train.classes), mean, std)


class Cifar100(DataSet):
    name = "cifar100"
    summary = "50,000 + 10,000 colour pictures in 100 classes, 3x32x32"

    def open(self, root: Path, seed: int) -> Source:
        train, test = both_parts("CIFAR100", root, files="the Python version of CIFAR-100 as cifar-100-python/")
        mean, std = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
        return Source(_part(train), _part(test), list(train.classes), mean, std)


def _part(part: Any) -> Part:
    """From a part of torchvision's CIFAR family: `data` (N, 32, 32, 3) uint8 and `targets`, a list."""
    data = torch.from_numpy(part.data)
    return Part(torch.tensor(part.targets), lambda rows: data[rows].permute(0, 3, 1, 2))
