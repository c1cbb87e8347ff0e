"""CIFAR-10 and CIFAR-100: 60,000 colour pictures of 32x32 each, through torchvision."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import torch

from edgebed.datasets.base import DataSet, Part, Source
from edgebed.vision import both_parts

Channels = tuple[float, float, float]


class _Cifar(DataSet):
    """What both have in common. Subclasses say how torchvision calls them and their folder."""

    kind: ClassVar[str]
    folder: ClassVar[str]
    mean: ClassVar[Channels]
    std: ClassVar[Channels]

    def open(self, root: Path, seed: int) -> Source:
        train, test = both_parts(self.kind, root, files=f"the Python version of {self.kind} as {self.folder}/")
        return Source(_part(train), _part(test), list(train.classes), self.mean, self.std)


class Cifar10(_Cifar):
    name = "cifar10"
    summary = "50,000 + 10,000 colour pictures in 10 classes, 3x32x32"
    kind, folder = "CIFAR10", "cifar-10-batches-py"
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


class Cifar100(_Cifar):
    name = "cifar100"
    summary = "50,000 + 10,000 colour pictures in 100 classes, 3x32x32"
    kind, folder = "CIFAR100", "cifar-100-python"
    mean, std = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)


def _part(part: Any) -> Part:
    """From a part of torchvision's CIFAR family: `data` (N, 32, 32, 3) uint8 and `targets`, a list."""
    data = torch.from_numpy(part.data)
    return Part(torch.tensor(part.targets), lambda rows: data[rows].permute(0, 3, 1, 2))
