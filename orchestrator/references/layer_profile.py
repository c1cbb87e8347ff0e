"""Measures what layers cost on this host: CPU seconds of one core by kind, direction and width, in a few seconds.

Each layer is measured alone, forward, backward, and backward without the gradient of its input; then steps of an
optimizer. The law of a kind goes through batches of several sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import msgspec
import torch
from torch import Tensor, autograd, nn

from orchestrator.references.layer_costs import (
    ELEMENTWISE,
    KERNELS,
    UPDATE,
    LayerCall,
    LayerCalls,
    LayerCosts,
    WidthLaw,
)
from orchestrator.references.lines import relative_law
from orchestrator.references.timing import best_s
from orchestrator.training.threads import one_thread

WIDTHS = (2, 4, 8, 16, 32, 64, 128)
"""Channels of the layers that are measured. Wider layers cost per multiply-add what the widest one does."""

INPUTS = ((4, 4), (4, 12), (32, 4), (32, 12))
"""Samples, and side of the maps."""

FEATURES = (32, 512)
"""Of a fully connected layer."""

TENSORS = ((50, 64), (50, 4096))
"""Number and size of the weights with which an optimizer's step is measured."""

Timed = tuple[LayerCall, float]
"""A call of a layer, and the CPU seconds that it took."""


def measure() -> LayerCosts:
    """The costs of layers on this host."""
    with one_thread():
        timed = [point for width in WIDTHS for make in _LAYERS for point in _layer(make(width), width)]
        timed += [point for samples in WIDTHS[:5] for point in _linear(samples)] + _updates()
    points: dict[tuple[str, float], list[Timed]] = {}
    for call, took in timed:
        points.setdefault((call.kind, call.width), []).append((call, took))
    costs: dict[str, list[WidthLaw]] = {}
    for (kind, width), each in sorted(points.items()):
        law = relative_law([(1.0, call.units, took) for call, took in each])
        costs.setdefault(kind, []).append(msgspec.structs.replace(law, width=width))
    return costs


_LAYERS: Sequence[Callable[[int], nn.Module]] = (
    *(partial(lambda size, width: nn.Conv2d(width, width, size, padding=size // 2), size) for size in KERNELS),
    lambda width: nn.Conv2d(width, width, 3, padding=1, groups=width),
    nn.BatchNorm2d,
    lambda width: nn.ReLU(),
    lambda width: nn.MaxPool2d(2),
)


def _layer(layer: nn.Module, width: int) -> Iterable[Timed]:
    """A layer that takes and gives maps with `width` channels."""
    for samples, side in INPUTS:
        yield from _passes(layer, torch.randn(samples, width, side, side))


def _linear(samples: int) -> Iterable[Timed]:
    """Fully connected layers. The smallest side of their matrix products is the number of samples."""
    for features in FEATURES:
        yield from _passes(nn.Linear(features, features), torch.randn(samples, features))


def _passes(layer: nn.Module, x: Tensor) -> Iterable[Timed]:
    """Forward and backward; for a layer with weights also backward without the gradient of the input."""
    for of_input in (True, False) if any(True for _ in layer.parameters()) else (True,):
        x = x.detach().requires_grad_(of_input)
        if of_input:
            yield from _timed(partial(layer, x))
        out = layer(x)
        yield from _timed(partial(autograd.backward, out, torch.ones_like(out), retain_graph=True))


def _timed(call: Callable[[], object]) -> Iterable[Timed]:
    """The calls of the layer itself in `call`, with equal shares of its seconds."""
    seen: list[LayerCall] = []
    with LayerCalls(seen.append):
        call()
    own = [each for each in seen if each.kind not in (ELEMENTWISE, UPDATE)] or seen
    took = best_s(call)
    return [(each, took / len(own)) for each in own]


def _updates() -> list[Timed]:
    """Steps of Adam, by operation."""
    points = []
    for count, size in TENSORS:
        weights = [nn.Parameter(torch.zeros(size)) for _ in range(count)]
        for weight in weights:
            weight.grad = torch.ones(size)
        optimizer = torch.optim.Adam(weights)
        optimizer.step()
        seen: list[LayerCall] = []
        with LayerCalls(seen.append):
            optimizer.step()
        points.append((LayerCall(UPDATE, 1.0, size), best_s(optimizer.step) / sum(w.kind == UPDATE for w in seen)))
    return points
