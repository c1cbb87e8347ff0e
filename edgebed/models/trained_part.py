"""Training a part of a network: the rest of its stages is frozen, and linear layers may get adapters (LoRA). Pure.

An adapter adds scale x B A to the weight W of a linear layer: A (rank, in) and B (out, rank) are trained, W is not
(Hu et al. 2022). A is drawn and B is 0, so the network begins with the outputs that it has without adapters. The names
of the network's own weights stay; those of adapters are `LAYER.lora_a` and `LAYER.lora_b`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional

from edgebed.errors import UsageError

if TYPE_CHECKING:
    from edgebed.models.staged import StagedModel

ADAPTER = ("lora_a", "lora_b")
"""Names of an adapter's weights in its layer."""


class Lora(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Adapters of this rank, scaled by `alpha` / `rank`, on the linear layers that `on` names."""

    rank: Annotated[int, msgspec.Meta(ge=1)] = 8
    alpha: Annotated[float, msgspec.Meta(gt=0)] = 8.0
    on: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)] = ("*",)


class TrainedPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What of a network's stages is trained: the stages, layers or weights that `trainable` names, and adapters. The
    auxiliary heads always are. Names are patterns as of files in a shell; a layer's name fits all that is in it."""

    trainable: tuple[str, ...] | None = None  # None: all, or with `lora` adapters only
    lora: Lora | None = None


class LoraLinear(nn.Linear):
    """A linear layer with an adapter: x (..., in) -> x W^T + b + scale x A^T B^T. It takes over the weights of `layer`.
    `scale`: alpha / rank."""

    def __init__(self, layer: nn.Linear, rank: int, scale: float) -> None:
        super().__init__(layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta")
        self.weight, self.bias, self.scale = layer.weight, layer.bias, scale
        place = layer.weight.device
        self.lora_a = nn.Parameter(torch.empty(rank, layer.in_features, device=place))
        self.lora_b = nn.Parameter(torch.zeros(layer.out_features, rank, device=place))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        change = functional.linear(functional.linear(x, self.lora_a), self.lora_b)
        return super().forward(x) + self.scale * change


def train_part(model: StagedModel, part: TrainedPart) -> None:
    """Add the adapters, and freeze what is not trained. Raises UsageError: a pattern fits nothing, or nothing is
    trained."""
    if part.trainable is None and part.lora is None:
        return
    stages = model.stages(0, len(model))
    names, trainable = list(stages.state_dict()), part.trainable or ()
    _refuse_unfit("trainable", trainable, names, model.stage_names)
    if part.lora is not None:
        linear = {name: each for name, each in stages.named_modules() if type(each) is nn.Linear}
        _refuse_unfit("lora.on", part.lora.on, linear, linear)
        for name, layer in linear.items():
            if _fits(name, part.lora.on) and not _fits(name, trainable):
                holder, _, last = name.rpartition(".")
                adapted = LoraLinear(layer, part.lora.rank, part.lora.alpha / part.lora.rank)
                setattr(model.get_submodule(holder), last, adapted)
    model.freeze(name for name in names if not _fits(name, trainable))
    if not any(parameter.requires_grad for parameter in model.stages(0, len(model)).parameters()):
        raise UsageError("nothing of the model is trained", hint="name something in `trainable`, or set `lora`")


def training_mode(stages: nn.Sequential, frozen: Collection[str]) -> nn.Sequential:
    """The stages in training mode. Layers whose running statistics are frozen, and those without such of which all is,
    stay in eval mode: the statistics stay, too."""
    stages.train()
    for path, layer in stages.named_modules() if frozen else ():
        own = [*layer.named_buffers(recurse=False)] or [*layer.named_parameters(recurse=False)]
        if own and all(f"{path}.{name}" in frozen for name, _ in own):
            layer.training = False
    return stages


def check_halves(model: StagedModel, cuts: Iterable[int], *, head: bool) -> None:
    """Raises UsageError where a half at one of these cuts has nothing to train. `head`: the device's half has one."""
    for cut in cuts if model.frozen else ():
        for half, stages in (("device", model.lower(cut)), ("server", model.upper(cut))):
            if not (head and half == "device") and not any(each.requires_grad for each in stages.parameters()):
                raise UsageError(
                    f"nothing of the {half}'s half is trained at cut {cut}",
                    hint="name something of it in the model's `trainable` or `lora.on`, or choose another cut",
                )


def _refuse_unfit(key: str, patterns: Sequence[str], names: Collection[str], shown: Collection[str]) -> None:
    for pattern in patterns:
        if not any(_fits(name, [pattern]) for name in names):
            raise UsageError(f"{key}: nothing is called {pattern!r}", hint=f"it has: {', '.join(shown) or 'none'}")


def _fits(name: str, patterns: Sequence[str]) -> bool:
    """Whether one of the patterns fits the name, or that of something which it is in."""
    parts = name.split(".")
    around = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
    return any(fnmatchcase(each, pattern) for each in around for pattern in patterns)
