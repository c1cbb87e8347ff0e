"""What keeps one device's bad batch out of a server half that several devices share (FedGKT, S²FL). Pure.

Before its optimizer steps, a shared half is looked at: the gradients, and the statistics that the forward pass left in
its buffers, must be numbers that training can go on with. Where they are not, the buffers are put back as they were,
the batch is left out, and its device is named.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn

from edgebed.errors import DivergedError, EdgebedError
from edgebed.models.staged import Weights

MOST = 1e18
"""No gradient, no running statistic, no weight is larger: its square would not fit float32, in which optimizers keep
squares."""

LOWER = "lower optimizer.lr"

T = TypeVar("T")
Backward = Callable[[Mapping[str, Weights]], T]
Errors = dict[str, EdgebedError]


def checked_half(half: nn.Module, where: str) -> None:
    """Raises DivergedError where a gradient or a statistic of the half is not finite, or larger than `MOST`."""
    gradients = [weight.grad for weight in half.parameters() if weight.grad is not None]
    statistics = [value for value in half.buffers() if value.is_floating_point()]
    for what, values in (("a gradient", gradients), ("a running statistic", statistics)):
        if not _fit(values):
            raise DivergedError(f"training diverged: {what} of {where} is not finite or above {MOST:g}", hint=LOWER)


def _fit(values: list[Tensor]) -> bool:
    if not values:
        return True
    largest = torch.stack([torch.linalg.vector_norm(value, math.inf) for value in values]).max()
    return bool(largest <= MOST)  # false for NaN


@contextlib.contextmanager
def undone_on_error(half: nn.Module) -> Iterator[None]:
    """Put the half's buffers back as they were if the block raises an EdgebedError. Weights are not touched: the block
    raises before its optimizer steps."""
    before = _copied(half)
    try:
        yield
    except EdgebedError:
        _put_back(half, before)
        raise


def _copied(half: nn.Module) -> list[Tensor]:
    return [value.clone() for value in half.buffers()]


def _put_back(half: nn.Module, before: list[Tensor]) -> None:
    with torch.no_grad():
        for value, was in zip(half.buffers(), before, strict=True):
            value.copy_(was)


def without_bad(half: nn.Module, uploads: Mapping[str, Weights], backward: Backward[T]) -> tuple[T | None, Errors]:
    """The result of `backward` for the uploads that can be used (None if there are none), and by device why the others
    cannot be used.

    Each upload is tried alone only if all together fail, so a normal step costs only a copy of the buffers.

    Args:
        backward: makes the gradients of some uploads, or raises EdgebedError; it makes no step.

    Raises:
        EdgebedError: each upload is good alone, and all together are not.
    """
    try:
        with undone_on_error(half):
            return backward(uploads), {}
    except EdgebedError:
        errors = {device: why for device in uploads if (why := _alone(half, device, uploads, backward)) is not None}
        if not errors:
            raise
    good = {device: tensors for device, tensors in uploads.items() if device not in errors}
    if not good:
        return None, errors
    with undone_on_error(half):
        return backward(good), errors


def _alone(half: nn.Module, device: str, uploads: Mapping[str, Weights], backward: Backward[T]) -> EdgebedError | None:
    """Why the upload of one device cannot be used; None if it can. The half is not changed."""
    before = _copied(half)
    try:
        backward({device: uploads[device]})
    except EdgebedError as error:
        return error
    finally:
        _put_back(half, before)
    return None
