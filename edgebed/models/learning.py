"""What every model learns by: the loss, which answers are right, and blank samples of a learning task. Pure.

All learning tasks are classifications, of a sample or of each of its tokens, so one loss does for all.
"""

from __future__ import annotations

from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.nn import functional

from edgebed.wire.messages import Assignment
from edgebed.wire.settings import LearningTask

Batch = tuple[Tensor, Tensor]
"""x (B, *input_shape), float32 or int64 tokens, and y (B, *answer_shape) int64 (`LearningTask`)."""


def loss_of(logits: Tensor, y: Tensor, *, reduction: str = "mean") -> Tensor:
    """Cross entropy, over all answers. logits (B, *answer_shape, classes), y (B, *answer_shape) -> ()."""
    return functional.cross_entropy(logits.flatten(0, -2), y.flatten(), reduction=reduction)


def right_answers(logits: Tensor, y: Tensor) -> Tensor:
    """Which answers are right, (B, *answer_shape) bool."""
    return logits.argmax(-1) == y


def blank_x(task: LearningTask, samples: int, generator: torch.Generator | None = None) -> Tensor:
    """Samples without meaning, (samples, *input_shape), on torch's default device: zeros, or drawn by a generator."""
    shape = (samples, *task.input_shape)
    if task.vocabulary:
        drawn = generator is not None
        return torch.randint(task.vocabulary, shape, generator=generator) if drawn else torch.zeros(shape).long()
    return torch.zeros(shape) if generator is None else torch.randn(shape, generator=generator)


def blank_y(task: LearningTask, samples: int) -> Tensor:
    """Answers for them: each class in turn. (samples, *answer_shape) int64."""
    column = torch.arange(samples) % task.classes
    return column.view(-1, *[1] * len(task.answer_shape)).expand(-1, *task.answer_shape)


def task_at(
    device: str, model: dict[str, object], learns: LearningTask, stages: int, objective: str, **more: Any
) -> Assignment:
    """An assignment of a model that is built for what it `learns`; `more`: its other fields."""
    return Assignment(device, model, stages=stages, objective=objective, **msgspec.structs.asdict(learns), **more)
