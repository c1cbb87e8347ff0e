"""The order in which a task goes through a shard, and its batches. Both sides compute it, so it is never sent. Pure."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import torch
from torch import Tensor


def shuffled(samples: int, seed: int, epoch: int) -> Tensor:
    """The rows 0..samples-1 in an order that depends on the arguments only.

    Sorted by Philox numbers: NumPy promises that those never change, and does not for `permutation`. A fleet may mix
    versions.
    """
    numbers = np.random.Philox(key=[seed % 2**64, epoch]).random_raw(samples)
    return torch.from_numpy(np.argsort(numbers, kind="stable"))


def batch_bounds(samples: int, batch_size: int, max_batches: int = 0) -> list[tuple[int, int]]:
    """Where the batches of one epoch begin and end. A last batch of one sample joins the one before, for batch norm
    cannot train on one **[ours]**."""
    count = max(1, math.ceil(samples / batch_size))
    if count > 1 and samples - (count - 1) * batch_size == 1:
        count -= 1
    bounds = [(i * batch_size, samples if i == count - 1 else (i + 1) * batch_size) for i in range(count)]
    return bounds[:max_batches] if max_batches else bounds


def assignment_seed(run_seed: int, device: str, round: int) -> int:
    """A seed for the batch order of one device in one round, the same on every machine."""
    digest = hashlib.sha256(f"{run_seed}/{device}/{round}".encode()).digest()
    return int.from_bytes(digest[:6], "big")
