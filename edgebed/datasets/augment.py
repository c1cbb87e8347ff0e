"""Random changes of training samples on the device: crop, flip, cutout, the same on every machine for the same seed."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from edgebed.wire.settings import Augment

STREAM = 1 << 63
"""Part of the key of these random numbers, so that they differ from those of the batch order (`shard.shuffled`)."""


def draws(samples: int, seed: int, epoch: int) -> Tensor:
    """(samples, 5) numbers of 32 bits: what happens to each sample of a shard in this epoch, whatever its batch."""
    key = np.array([seed % 2**64, STREAM | epoch], dtype=np.uint64)  # a list would become floats
    raw = np.random.Philox(key=key).random_raw(samples * 5)
    return torch.from_numpy((raw >> 32).astype(np.int64)).view(samples, 5)


def cropped(x: Tensor, drawn: Tensor, wanted: Augment) -> Tensor:
    """x (N, C, H, W) moved by up to `crop` pixels in both directions and mirrored left to right with probability one
    half, as `drawn` (N, 5) says. Uncovered pixels become black (0). Done before normalising, as in the papers' code."""
    count, _, height, width = x.shape
    pad = wanted.crop
    rows = drawn[:, 0:1] % (2 * pad + 1) + torch.arange(height)
    columns = drawn[:, 1:2] % (2 * pad + 1) + torch.arange(width)
    if wanted.flip:
        columns = torch.where(drawn[:, 2:3] % 2 == 1, columns.flip(1), columns)
    padded = torch.nn.functional.pad(x, (pad, pad, pad, pad))
    which = torch.arange(count)[:, None, None]
    # indices on both sides of a slice put their shape first: (N, H, W, C)
    return padded[which, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


def cut_out(x: Tensor, drawn: Tensor, wanted: Augment) -> Tensor:
    """Sets a square of `cutout` pixels around a random pixel of each sample to 0; the part outside the picture is cut
    off. Done after normalising, so 0 is the mean."""
    reach, (height, width) = wanted.cutout // 2, x.shape[2:]
    middles = drawn[:, 3:4] % height, drawn[:, 4:5] % width
    across, along = (
        (torch.arange(size) >= middle - reach) & (torch.arange(size) < middle + reach)
        for middle, size in zip(middles, (height, width), strict=True)
    )
    return x.masked_fill((across[:, :, None] & along[:, None, :])[:, None], 0.0)
