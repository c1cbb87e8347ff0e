"""What a device does in a round, as one line of a test."""

from __future__ import annotations

from typing import Any

from edgebed.wire.messages import Assignment
from edgebed.wire.settings import Optimizer
from tests.component._fleet import CLASSES, SHAPE

MODEL: dict[str, object] = {"name": "resnet-tiny", "widths": [4, 4, 8]}


def assignment(**wanted: Any) -> Assignment:
    defaults: dict[str, Any] = {
        "device": "a",
        "model": MODEL,
        "classes": CLASSES,
        "input_shape": SHAPE,
        "stages": 2,
        "objective": "head",
        "uploads": ("features", "weights"),
        "batch_size": 8,
        "optimizer": Optimizer("sgd", 0.05, 0.9, 1e-4),
        "seed": 1,
    }
    return Assignment(**{**defaults, **wanted})
