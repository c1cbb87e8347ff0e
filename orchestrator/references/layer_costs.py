"""What layers cost on a host, and which layers a piece of torch code calls: any model, half or optimizer.

A kind is what a layer does in one direction: `convolution 3x3`, `convolution 3x3 backward`, `norm`, `linear`, …. The
CPU seconds of one call with n units are `call_s` + n × `unit_s`; a unit is a multiply-add, or a number that is read and
written where there are none. Both depend on the layer's width: of a convolution the geometric mean of its channels in
and out, of a norm its channels, of a matrix product its smallest side. They were measured at some widths
(`layer_profile.py`). Between two of them, both are interpolated over the logarithm of the width.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

ELEMENTWISE, UPDATE, NORM, LINEAR, POOL = "elementwise", "update", "norm", "linear", "pool"
KERNELS = (1, 3, 5)
"""Sides of the convolutions that are told apart; others count as the nearest one."""

BACKWARD, LAST = " backward", " last backward"
"""Directions: the gradients of weights and input, and those of the weights only, in the first layer that trains."""


class LayerCall(msgspec.Struct, frozen=True):
    """One call of one layer."""

    kind: str
    width: float
    units: float


class WidthLaw(msgspec.Struct, frozen=True):
    """CPU seconds of a call with n units, for layers of one width: `call_s` + n × `unit_s`."""

    width: float
    call_s: float
    unit_s: float


LayerCosts = Mapping[str, Sequence[WidthLaw]]
"""By kind, in the order of width."""


def seconds(costs: LayerCosts, call: LayerCall) -> float:
    """CPU seconds of a call; 0 for a kind that was not measured."""
    laws = costs.get(call.kind)
    if not laws:
        return 0.0
    law = law_at(laws, call.width)
    return law.call_s + call.units * law.unit_s


def law_at(laws: Sequence[WidthLaw], width: float) -> WidthLaw:
    """The law of a width; outside the widths that were measured, that of the nearest one."""
    place = bisect_right([law.width for law in laws], width)
    if place in (0, len(laws)):
        return laws[min(place, len(laws) - 1)]
    low, high = laws[place - 1], laws[place]
    share = math.log(width / low.width) / math.log(high.width / low.width)
    return WidthLaw(
        width, low.call_s + share * (high.call_s - low.call_s), low.unit_s + share * (high.unit_s - low.unit_s)
    )


class LayerCalls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Context manager: calls `see` for every call of a layer in this thread."""

    def __init__(self, see: Callable[[LayerCall], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._see = see

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        call = call_of(func, args, out)
        if call is not None:
            self._see(call)
        return out


class LayerMeter(LayerCalls):  # type: ignore[no-untyped-call]
    """Context manager: while it is open, adds up what the layers of this thread's torch code cost, instead of reading
    a clock. The same code with the same shapes always gives the same seconds."""

    def __init__(self, costs: LayerCosts) -> None:
        super().__init__(self._add)
        self._costs, self._sum = costs, 0.0
        self._known: dict[LayerCall, float] = {}

    def seconds(self) -> float:
        """Of all layers so far."""
        return self._sum

    def _add(self, call: LayerCall) -> None:
        if call not in self._known:
            self._known[call] = seconds(self._costs, call)
        self._sum += self._known[call]


def call_of(func: Any, args: Sequence[Any], out: Any) -> LayerCall | None:
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
            return LayerCall(NORM, args[0].shape[1], args[0].numel())
        case "native_batch_norm_backward":
            return LayerCall(NORM + BACKWARD, args[0].shape[1], args[0].numel())
        case "mm" | "addmm":
            left, right = args[-2:]
            return LayerCall(LINEAR, min(*left.shape, right.shape[1]), left.shape[0] * right.numel())
    elements = _elements(args, out)
    if "pool" in name:
        return LayerCall(POOL + (BACKWARD if "backward" in name else ""), 1.0, elements)
    return LayerCall(UPDATE if name in _UPDATES else ELEMENTWISE, 1.0, elements)


_FREE = {"detach", "empty", "empty_like", "empty_strided", "_local_scalar_dense", "_unsafe_view"}
"""Operations that move no numbers, or one."""

_UPDATES = {"lerp_", "addcmul_", "addcdiv_", "mul_", "add_", "sqrt", "div_"}
"""Operations of an optimizer's step, which change a weight or its moments in place."""


def _convolution(weight: Tensor, groups: int, out: Tensor, direction: str) -> LayerCall:
    out_channels, group_channels, side = weight.shape[:3]
    size = min(KERNELS, key=lambda known: abs(known - side))
    kind = f"depthwise{direction}" if groups > 1 else f"convolution {size}x{size}{direction}"
    width = math.sqrt(out_channels * group_channels * groups)
    return LayerCall(kind, width, out.numel() * math.prod(weight.shape[1:]))


def _elements(args: Sequence[Any], out: Any) -> int:
    """Numbers of the largest tensor that is read or written."""
    values = [*args, *(out if isinstance(out, list | tuple) else [out])]
    return max((value.numel() for value in values if isinstance(value, torch.Tensor)), default=0)
