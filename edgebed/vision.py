"""The one door to torchvision and pictures, with an import that also works beside a CPU build of torch.

torchvision 0.28.0 from PyPI is linked against CUDA builds of torch. Beside a CPU build its library of operators does
not load, and the import ends with "operator torchvision::nms does not exist", for the package describes the shapes of
`nms` and `qnms` without asking whether they are there. Declaring the two is enough: Edgebed uses torchvision's data
sets, which call neither. Where the library did load, nothing is declared.
"""

from __future__ import annotations

import importlib
import io
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from edgebed.errors import UsageError

_DECLARED: list[Any] = []  # a Library takes its operators along when it is collected


def torchvision() -> ModuleType:
    """The torchvision package. Raises UsageError where it is not installed or does not fit this torch."""
    try:
        return _import()
    except ImportError as error:
        raise UsageError(
            f"torchvision cannot be imported: {error}",
            hint="pip install './edgebed-VERSION-py3-none-any.whl[orchestrator]'",
        ) from None
    except RuntimeError as error:
        raise UsageError(
            f"torchvision does not fit torch {torch.__version__}: {error}",
            hint="install the versions of requirements/torch.txt from one index",
        ) from None


def _import() -> ModuleType:
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms does not exist" not in str(error):
            raise
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]  # what the import left half-made
    library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _DECLARED.append(library)
    return importlib.import_module("torchvision")


def both_parts(kind: str, root: Path, *, files: str) -> tuple[Any, Any]:
    """The training and the test part of a torchvision data set, downloaded into `root` unless they are there.

    Args:
        kind: the class in `torchvision.datasets`.
        files: where the files belong below `root`, for the message.

    Raises:
        UsageError: neither there nor to be had; with cause and hint.
    """
    dataset = getattr(torchvision().datasets, kind)
    try:
        return dataset(str(root), train=True, download=True), dataset(str(root), train=False, download=True)
    except (OSError, RuntimeError, EOFError, ValueError) as error:
        raise UsageError(
            f"{kind} is not in {root} and cannot be downloaded: {' '.join(str(error).split())}",
            hint=f"put {files} into {root}, or name the folder that holds it in EDGEBED_DATA",
        ) from None


def picture(source: str | Path | bytes, *, size: int = 0, grey: bool = False) -> torch.Tensor:
    """One picture file as (C, H, W) uint8, C = 3 or 1. `size`: scaled to size x size; 0 = as it is. Raises UsageError:
    it is no picture that can be read."""
    from PIL import Image  # torchvision brings Pillow along

    try:
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
            converted = image.convert("L" if grey else "RGB")
            if size and converted.size != (size, size):
                converted = converted.resize((size, size), Image.Resampling.BILINEAR)
            pixels = np.array(converted)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        name = f"{len(source)} bytes" if isinstance(source, bytes) else str(source)
        raise UsageError(f"{name}: no picture that can be read: {error}", hint="mend or remove the file") from None
    return torch.from_numpy(pixels).reshape(*pixels.shape[:2], -1).permute(2, 0, 1)
