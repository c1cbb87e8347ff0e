"""What a model costs at each cut, counted without running it: parameters, bytes, floating-point operations.

Everything is computed on torch's meta device, which knows shapes and holds no numbers, so that the largest model takes
a second. Operations are those of convolutions and matrix products, a multiply-add counted as two (torch's counter).
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from edgebed.errors import UsageError
from edgebed.models.staged import ModelPlugin, StagedModel

FLOAT = 4  # bytes of a float32


class CutCosts(msgspec.Struct, frozen=True):
    """One way to cut the model. The device half holds the stages up to the cut and the cut's head."""

    cut: int
    after: str  # name of the device's last stage
    feature_shape: tuple[int, ...]  # of one sample; empty where the device holds the whole model
    feature_bytes: int  # per batch, float32, without labels
    device_parameters: int
    device_bytes: int  # weights and buffers, as sent uncompressed
    forward_flops: int  # device half, per batch
    training_flops: int  # device half, forward and backward, per batch


class ModelCosts(msgspec.Struct, frozen=True):
    """A model for one input shape, number of classes and batch size. `parameters` does not count the heads."""

    name: str
    summary: str
    input_shape: tuple[int, ...]
    classes: int
    batch: int
    parameters: int
    head_parameters: int
    cuts: list[CutCosts]  # the last is the whole model on the device


def model_costs(plugin: ModelPlugin, input_shape: tuple[int, ...], classes: int, batch: int) -> ModelCosts:
    """Count everything. Raises UsageError where the model cannot take such an input."""
    try:
        with torch.device("meta"):
            model = plugin.build(input_shape, classes).train()
            cuts = _cuts(model, torch.zeros(batch, *input_shape))
    except (RuntimeError, ValueError, IndexError) as error:
        shape = "x".join(map(str, input_shape))
        raise UsageError(
            f"{plugin.name} cannot take an input of {shape}: {error}", cure="give a larger shape, or another model"
        ) from None
    heads = sum(_parameters(model.head(cut)) for cut in model.cuts_with_head)
    return ModelCosts(
        name=plugin.name,
        summary=plugin.summary,
        input_shape=input_shape,
        classes=classes,
        batch=batch,
        parameters=_parameters(model) - heads,
        head_parameters=heads,
        cuts=cuts,
    )


def _cuts(model: StagedModel, x: Tensor) -> list[CutCosts]:
    """Every stage and head is counted once; a device half is the sum of its parts."""
    found, state = [], model.state_dict()
    forward = training = parameters = 0
    for cut, name in enumerate(model.stage_names, 1):
        stage = model.get_submodule(name)
        x, stage_forward, stage_training = _count(stage, x)
        forward, training, parameters = (
            forward + stage_forward,
            training + stage_training,
            parameters + _parameters(stage),
        )
        headed = cut in model.cuts_with_head
        head_forward = head_training = head_parameters = 0
        if headed:
            _, head_forward, head_training = _count(model.head(cut), x)
            head_parameters = _parameters(model.head(cut))
        whole = cut == len(model)
        found.append(
            CutCosts(
                cut=cut,
                after=name,
                feature_shape=() if whole else tuple(x.shape[1:]),
                feature_bytes=0 if whole else x.numel() * FLOAT,
                device_parameters=parameters + head_parameters,
                device_bytes=_bytes(state[key] for key in model.names_below(cut, head=headed)),
                forward_flops=forward + head_forward,
                training_flops=training + head_training,
            )
        )
    return found


def _count(module: nn.Module, x: Tensor) -> tuple[Tensor, int, int]:
    """Output, operations of the forward pass, and of both passes. The gradient goes on to x where x has one."""
    counter = FlopCounterMode(display=False)
    with counter:
        out: Tensor = module(x)
        forward = counter.get_total_flops()
        if out.requires_grad:
            out.sum().backward()  # type: ignore[no-untyped-call]
    return out.detach().requires_grad_(), forward, counter.get_total_flops()


def _parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
