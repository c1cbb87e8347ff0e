"""Digits: 1,797 handwritten digits of 8x8, shipped with scikit-learn: real data without a download."""

from __future__ import annotations

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
        from sklearn.datasets import load_digits

        bunch = load_digits()
        x = torch.from_numpy(bunch.images.astype(np.float32) / 16.0).unsqueeze(1)
        y = torch.from_numpy(bunch.target.astype(np.int64))
        train, test = hold_out(torch.arange(len(y)), self.options.test_share, seed)
        names = [str(digit) for digit in range(10)]
        return Source(in_memory(x[train], y[train]), in_memory(x[test], y[test]), names, (0.3053,), (0.3760,))
