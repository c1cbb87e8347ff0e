"""Sees which layers a piece of torch code calls, forward and backward, while it runs: any model, half or optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from orchestrator.simulation.layer_costs import Work

ELEMENTWISE, UPDATE, NORM, LINEAR, POOL = "elementwise", "update", "norm", "linear", "pool"
KERNELS = (1, 3, 5)
"""Sides of the convolutions that are told apart; others count as the nearest one."""

BACKWARD, LAST = " backward", " last backward"
"""Directions: the gradients of weights and input, and those of the weights only, in the first layer that trains."""


class LayerWork(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Context manager: calls `see` for every call of a layer in this thread."""

    def __init__(self, see: Callable[[Work], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._see = see

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        work = work_of(func, args, out)
        if work is not None:
            self._see(work)
        return out


def work_of(func: Any, args: Sequence[Any], out: Any) -> Work | None:
    """What an operation of torch does; None where it moves no numbers."""
    name = func.overloadpacket.__name__
    if func.is_view or name in _FREE:
        return None
    match name:
        case "convolution":
            return _convolution(args[1], args[8], out, "")
        case "convolution_backward":
            return _convolution(args[2], args[9], args[0], BACKWARD if args[10][0] else LAST)
        case "native_batch_norm" | "cudnn_batch_norm" | "_native_batch_norm_legit":
            return Work(NORM, args[0].shape[1], args[0].numel())
        case "native_batch_norm_backward":
            return Work(NORM + BACKWARD, args[0].shape[1], args[0].numel())
        case "mm" | "addmm":
            left, right = args[-2:]
            return Work(LINEAR, min(*left.shape, right.shape[1]), left.shape[0] * right.numel())
    elements = _elements(args, out)
    if "pool" in name:
        return Work(POOL + (BACKWARD if "backward" in name else ""), 1.0, elements)
    return Work(UPDATE if name in _UPDATES else ELEMENTWISE, 1.0, elements)


_FREE = {"detach", "empty", "empty_like", "empty_strided", "_local_scalar_dense", "_unsafe_view"}
"""Operations that move no numbers, or one."""

_UPDATES = {"lerp_", "addcmul_", "addcdiv_", "mul_", "add_", "sqrt", "div_"}
"""Operations of an optimizer's step, which change a weight or its moments in place."""


def _convolution(weight: Tensor, groups: int, out: Tensor, direction: str) -> Work:
    out_channels, group_channels, side = weight.shape[:3]
    size = min(KERNELS, key=lambda known: abs(known - side))
    kind = f"depthwise{direction}" if groups > 1 else f"convolution {size}x{size}{direction}"
    width = math.sqrt(out_channels * group_channels * groups)
    return Work(kind, width, out.numel() * math.prod(weight.shape[1:]))


def _elements(args: Sequence[Any], out: Any) -> int:
    """Numbers of the largest tensor that is read or written."""
    values = [*args, *(out if isinstance(out, list | tuple) else [out])]
    return max((value.numel() for value in values if isinstance(value, torch.Tensor)), default=0)
