"""Test accuracy and loss of global weights, on a copy of the model. Pure."""

from __future__ import annotations

import copy

import msgspec
import torch
from torch import Tensor
from torch.nn import functional

from edgebed.errors import UsageError
from edgebed.models.staged import StagedModel, Weights


class Score(msgspec.Struct, frozen=True):
    """Share of right answers, mean cross entropy, and what a method measures besides (accuracy per exit)."""

    accuracy: float
    loss: float
    extra: dict[str, float] = {}


def evaluate(
    model: StagedModel, weights: Weights, x: Tensor, y: Tensor, accelerator: torch.device, batch: int = 500
) -> Score:
    """Accuracy and mean cross entropy over a test set, in eval mode.

    Args:
        weights: by name; what is not given is as in `model`. The model itself is left as it is.
        x: (N, C, H, W) float32; y: (N,) int64; on any device.
        batch: samples per forward pass; bounds the memory.

    Raises:
        UsageError: the test set is empty.
    """
    if not len(y):
        raise UsageError("there are no test samples to evaluate on", hint="choose a data set with a test part")
    copied = copy.deepcopy(model)
    copied.load(weights)
    copied.to(accelerator).eval()
    right, loss = 0, 0.0
    with torch.inference_mode():
        for start in range(0, len(y), batch):
            logits = copied(x[start : start + batch].to(accelerator))
            labels = y[start : start + batch].to(accelerator)
            right += int((logits.argmax(1) == labels).sum())
            loss += float(functional.cross_entropy(logits, labels, reduction="sum"))
    return Score(right / len(y), loss / len(y))
