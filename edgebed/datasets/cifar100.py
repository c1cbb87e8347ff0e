"""CIFAR-100: 60,000 colour pictures of 32x32 in 100 classes, through torchvision."""

from __future__ import annotations

from pathlib import Path

from edgebed.datasets.base import DataSet, Source
from edgebed.datasets.cifar10 import colour_part
from edgebed.vision import both_parts


class Cifar100(DataSet):
    name = "cifar100"
    summary = "50,000 + 10,000 colour pictures in 100 classes, 3x32x32"

    def open(self, root: Path, seed: int) -> Source:
        train, test = both_parts("CIFAR100", root, files="the Python version of CIFAR-100 as cifar-100-python/")
        mean, std = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
        return Source(colour_part(train), colour_part(test), list(train.classes), mean, std)
