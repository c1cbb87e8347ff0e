"""Whether a board's torch can do the work. It is the board's own build, so it is tried before the agent joins."""

from __future__ import annotations

import re

import torch

from edgebed.accelerator import try_convolution
from edgebed.errors import UsageError

TESTED = ((2, 3), (2, 13))
"""The oldest and the newest version with which the agent was tested (docs/boards.md)."""

CURE = "docs/boards.md names the torch for each kind of board; install it, then restart edgebed-agent"


def check_torch(accelerator: torch.device, version: str = torch.__version__) -> None:
    """Raises UsageError where this torch is too old, or cannot do one convolution, forward and backward."""
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
