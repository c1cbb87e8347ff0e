"""Test accuracy and loss of global weights, on a copy of the model. Pure."""

from __future__ import annotations

import copy

import msgspec
import torch
from torch import Tensor

from edgebed.errors import UsageError
from edgebed.models.learning import loss_of, right_answers
from edgebed.models.staged import StagedModel, Weights

TOKENS = 4_000_000
"""Numbers of one kind that a forward pass of sequences may keep."""


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
        x: (N, *input_shape); y: (N, *answer_shape) int64; on any device.
        batch: samples per forward pass; bounds the memory. Of sequences fewer: attention keeps T x T numbers of each.

    Raises:
        UsageError: the test set is empty.
    """
    if not len(y):
        raise UsageError("there are no test samples to evaluate on", hint="choose a data set with a test part")
    if model.task.vocabulary:
        length = model.input_shape[0]
        batch = max(1, min(batch, TOKENS // (length * max(length, model.classes))))
    copied = copy.deepcopy(model)
    copied.load(weights)
    copied.to(accelerator).eval()
    right, loss = 0, 0.0
    with torch.inference_mode():
        for start in range(0, len(y), batch):
            logits = copied(x[start : start + batch].to(accelerator))
            labels = y[start : start + batch].to(accelerator)
            right += int(right_answers(logits, labels).sum())
            loss += float(loss_of(logits, labels, reduction="sum"))
    return Score(right / y.numel(), loss / y.numel())
