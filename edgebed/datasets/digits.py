"""Digits: 1,797 handwritten digits of 8x8, shipped with scikit-learn: real data without a download."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import torch

from edgebed.datasets.base import DataSet, Share, Source, Subset, hold_out, in_memory


class Digits(DataSet):
    name = "digits"
    summary = "1,797 handwritten digits, 1x8x8; comes with scikit-learn"

    class Options(Subset, frozen=True, forbid_unknown_fields=True, kw_only=True):
        test_share: Share = 0.2

    options: Options

    def open(self, root: Path, seed: int) -> Source:
        table = torch.from_numpy(np.loadtxt(_file(), np.int64, delimiter=","))  # 64 pixels and the digit in a row
        x, y = table[:, :-1].to(torch.float32).reshape(-1, 1, 8, 8) / 16.0, table[:, -1].contiguous()
        train, test = hold_out(torch.arange(len(y)), self.options.test_share, seed)
        names = [str(digit) for digit in range(10)]
        return Source(in_memory(x[train], y[train]), in_memory(x[test], y[test]), names, (0.3053,), (0.3760,))


def _file() -> Path:
    """Of scikit-learn, whose import would take a second."""
    package = importlib.util.find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
