"""The classifiers of torchvision by name, as the code of a plug-in (`edgebed.models.network`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from edgebed.vision import torchvision

_models = torchvision().models
_NAMES = _models.list_models(module=_models)
_ALONE: Mapping[str, Any] = {"aux_logits": False, "init_weights": True}
"""Options of the two networks that otherwise give the logits of further classifiers, too."""


def __dir__() -> list[str]:
    return list(_NAMES)


def __getattr__(name: str) -> Callable[..., nn.Module]:
    if name not in _NAMES:
        raise AttributeError(name)
    given = _ALONE if name in ("googlenet", "inception_v3") else {}

    def build(num_classes: int, **options: Any) -> nn.Module:
        network: nn.Module = _models.get_model(name, **{"num_classes": num_classes, **given, **options})
        return network

    return build
