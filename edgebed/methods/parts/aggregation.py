"""Merging weights by name: averages, and the check of an update before it may be merged. Pure.

papers.md §1 step 5. A merge of one device is that device to the bit, and the order of devices is the caller's, so
the same contributions give the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from edgebed.errors import UsageError
from edgebed.methods.base import Contribution
from edgebed.methods.parts.shared_half import MOST
from edgebed.models.staged import GIVEN, Weights

Aggregate = Literal["samples", "uniform"]

PASSES = 100
"""A batch-norm layer counts a batch at most so often: once for each forward pass."""


def merge_by_name(weights: Weights, contributions: Sequence[Contribution], aggregate: Aggregate) -> Weights:
    """The next global weights: each name averaged over the devices whose halves hold it, others unchanged.

    Eq. 1 of the DTFL paper weights by samples (its listing prints 1/K: `uniform`). A name that both halves of a device
    hold counts with the device's value.
    """
    shares = [
        (float(part.samples) if aggregate == "samples" else 1.0, {**part.server_weights, **part.weights})
        for part in contributions
    ]
    return average(weights, shares)


def average(weights: Weights, shares: Sequence[tuple[float, Mapping[str, Tensor]]]) -> Weights:
    """Each name of `weights` as the weighted mean over the mappings that hold it; a name that none holds stays.

    Batch-norm running statistics are averaged like weights; integer counters take the maximum **[ours]**.

    Raises:
        UsageError: a share is not positive.
    """
    for share, _ in shares:
        if not share > 0:
            raise UsageError(f"a merge with a share of {share}", hint="leave out devices that trained on no samples")
    return {
        name: _mean(value, [(share, part[name]) for share, part in shares if name in part])
        for name, value in weights.items()
    }


def _mean(current: Tensor, parts: Sequence[tuple[float, Tensor]]) -> Tensor:
    if not parts:
        return current
    if not current.is_floating_point():
        return torch.stack([value for _, value in parts]).amax(0)
    if len(parts) == 1:
        return parts[0][1].clone()
    total = sum(share for share, _ in parts)
    # float64: n·w is exact for float32 weights, so equal contributions merge to themselves
    mean = torch.zeros(current.shape, dtype=torch.float64)
    for share, value in parts:
        mean += share * value.to(torch.float64)
    return (mean / total).to(current.dtype)


def fault(reference: Mapping[str, Tensor], update: Mapping[str, Tensor], expected: Collection[str]) -> str:
    """Why `update` may not be merged, or "". It must hold exactly the `expected` names, shaped as in `reference`, and
    only finite values."""
    missing, foreign = sorted(set(expected) - set(update)), sorted(set(update) - set(expected))
    if missing:
        return f"{len(missing)} weights are missing, the first {missing[0]!r}"
    if foreign:
        return f"{len(foreign)} weights were not asked for, the first {foreign[0]!r}"
    for name, value in update.items():
        want = reference[name]
        if value.shape != want.shape or value.dtype != want.dtype:
            return f"{name!r} is {_kind(value)}, the model's is {_kind(want)}"
    return not_finite(update)


def not_finite(tensors: Mapping[str, Tensor]) -> str:
    """Names the first tensor that holds NaN or infinity; "" where all is finite."""
    for name, value in tensors.items():
        # the sum is far cheaper than a mask, and a large finite tensor that overflows it is looked at again
        if value.is_floating_point() and not torch.isfinite(value.sum()) and not torch.isfinite(value).all():
            return f"{name!r} holds values that are not finite"
    return ""


def unfit(tensors: Mapping[str, Tensor]) -> str:
    """Names the first tensor that holds values that are not finite, or whose square overflows float32; else ""."""
    large = (name for name, value in tensors.items() if value.is_floating_point() and (value.abs() > MOST).any())
    return not_finite(tensors) or next((f"{name!r} holds values above {MOST:g}" for name in large), "")


def impossible(reference: Mapping[str, Tensor], update: Mapping[str, Tensor], batches: int) -> str:
    """Why `update` cannot be the result of training `reference` for so many batches, or "": a weight whose square
    overflows float32, a negative variance, or a count of batches far from that of the task. `update` is finite and
    holds names of `reference`."""
    for name, value in update.items():
        if not value.numel():
            continue
        low, high = (float(bound) for bound in torch.aminmax(value))
        if value.is_floating_point() and max(-low, high) > MOST:
            return f"{name!r} holds {high if high > MOST else low:.3g}; values up to {MOST:g} can be trained on"
        if name.endswith(".running_var") and low < 0:
            return f"{name!r} holds a variance of {low:.3g}"
        most = int(reference[name].max()) + PASSES * batches if not value.is_floating_point() else 0
        if name.endswith(".num_batches_tracked") and not 0 <= low <= high <= most:
            return f"{name!r} is {high:.0f} after {batches} batches from {int(reference[name].max())}"
    return ""


def moved(reference: Mapping[str, Tensor], update: Mapping[str, Tensor]) -> float:
    """Relative size of an update: the L2 norm of its difference from `reference`, divided by that of `reference`, over
    all floating weights of the update."""
    change = start = 0.0
    for name, value in update.items():
        if value.is_floating_point() and not name.startswith(GIVEN):
            before = reference[name].double()
            change += float((value.double() - before).square().sum())
            start += float(before.square().sum())
    return math.sqrt(change / start) if start else math.inf if change else 0.0


def _kind(value: Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
