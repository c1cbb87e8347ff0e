"""Fashion-MNIST: 70,000 pieces of clothing of 28x28, through torchvision."""

from __future__ import annotations

from pathlib import Path

from edgebed.datasets.base import DataSet, Source
from edgebed.datasets.mnist import grey_part
from edgebed.vision import both_parts


class FashionMnist(DataSet):
    name = "fashion-mnist"
    summary = "60,000 + 10,000 pieces of clothing, 1x28x28"

    def open(self, root: Path, seed: int) -> Source:
        train, test = both_parts("FashionMNIST", root, files="the idx files of Fashion-MNIST as FashionMNIST/raw/")
        return Source(grey_part(train), grey_part(test), list(train.classes), (0.2860,), (0.3530,))
