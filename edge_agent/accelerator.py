"""Where a device trains: on its CPU, or on a CUDA device that it has."""

from __future__ import annotations

import sys
from typing import get_args

import torch

from edgebed.accelerator import CPU, why_not_cuda
from edgebed.errors import UsageError
from edgebed.typed import nearest
from edgebed.wire.boards import Accelerator

NAMES = get_args(Accelerator)


def find_accelerator(wanted: str) -> torch.device:
    """The torch device of NAMES.

    Raises:
        UsageError: there is none of this name, or torch cannot use it.
    """
    if wanted not in NAMES:
        raise UsageError(f"there is no accelerator {wanted!r}{nearest(wanted, NAMES)}", hint="give auto, cpu or cuda")
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return CPU
    why = why_not_cuda()
    if not why:
        return torch.device("cuda")
    if wanted == "auto":
        print(f"edgebed-agent: trains on the CPU, because {why}", file=sys.stderr)
        return CPU
    raise UsageError(
        f"this board cannot train on cuda: {why}",
        hint="install the torch that the maker of the board offers (docs/boards.md), or ask for cpu or auto",
    )


def accelerator_facts(accelerator: torch.device) -> dict[str, str]:
    """What the agent tells of it when it joins."""
    name = torch.cuda.get_device_name(accelerator) if accelerator.type == "cuda" else "cpu"
    return {"accelerator": name}
