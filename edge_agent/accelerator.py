"""Where a device trains: on its CPU, or on a CUDA device that it has."""

from __future__ import annotations

import re
import sys
from typing import get_args

import torch

from edgebed.accelerator import CPU, try_convolution, why_not_cuda
from edgebed.errors import UsageError
from edgebed.typed import nearest
from edgebed.wire.boards import Accelerator

NAMES = get_args(Accelerator)

TESTED = ((2, 3), (2, 13))
"""The oldest and the newest version with which the agent was tested (docs/boards.md)."""

CURE = "docs/boards.md names the torch for each kind of board; install it, then restart edgebed-agent"


def find_accelerator(wanted: str) -> torch.device:
    """The torch device of NAMES. Raises UsageError: there is none of this name, or torch cannot use it."""
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


def check_torch(accelerator: torch.device, version: str = torch.__version__) -> None:
    """Raises UsageError where this torch is too old, or cannot do one convolution, forward and backward. It is the
    board's own build, so it is tried before the agent joins."""
    if _number(version) < TESTED[0]:
        raise UsageError(f"torch {version} is older than {_text(TESTED[0])}, the oldest that was tested", hint=CURE)
    try:
        try_convolution(accelerator)
    except (RuntimeError, OSError) as error:
        first = str(error).strip().partition("\n")[0]
        raise UsageError(f"torch {version} cannot do a convolution on {accelerator}: {first}", hint=CURE) from None


def torch_note(version: str = torch.__version__) -> dict[str, str]:
    """A fact about a version that is newer than those that were tested; it should do."""
    if _number(version) <= TESTED[1]:
        return {}
    return {"torch_note": f"{version} is newer than {_text(TESTED[1])}, the newest that was tested"}


def _number(version: str) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _text(number: tuple[int, int]) -> str:
    return f"{number[0]}.{number[1]}"
