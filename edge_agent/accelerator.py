"""Where a device trains: on its CPU, or on a CUDA device that it has."""

from __future__ import annotations

import re
import sys
from typing import get_args

import torch
from torch.nn import functional

from edgebed.errors import UsageError
from edgebed.typed import nearest
from edgebed.wire.boards import Accelerator

CPU = torch.device("cpu")
NAMES = get_args(Accelerator)

TESTED = ((2, 3), (2, 13))
"""The oldest and the newest version with which the agent was tested (docs/boards.md)."""

CURE = "docs/boards.md names the torch for each kind of board; install it, then restart edgebed-agent"


def find_accelerator(wanted: str) -> torch.device:
    """The torch device of NAMES. CUDA is tried with a convolution, forward and backward: a build of torch for other
    graphics processors is found, and fails.

    Raises:
        UsageError: there is none of this name, or torch cannot use it.
    """
    if wanted not in NAMES:
        raise UsageError(f"there is no accelerator {wanted!r}{nearest(wanted, NAMES)}", hint="give auto, cpu or cuda")
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return CPU
    why = _why_not_cuda()
    if not why:
        return torch.device("cuda")
    if wanted == "auto":
        print(f"edgebed-agent: trains on the CPU, because {why}", file=sys.stderr)
        return CPU
    raise UsageError(
        f"this board cannot train on cuda: {why}",
        hint="install the torch that the maker of the board offers (docs/boards.md), or ask for cpu or auto",
    )


def _why_not_cuda() -> str:
    """ "" where CUDA works."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built for the CPU only"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} is built for CUDA {torch.version.cuda}, but finds no device or no driver"
    try:
        try_convolution(torch.device("cuda"))
    except RuntimeError as error:
        first = str(error).strip().partition("\n")[0]
        return f"torch {torch.__version__} fails on {torch.cuda.get_device_name()}: {first}"
    return ""


def try_convolution(accelerator: torch.device) -> None:
    """One convolution, forward and backward. Raises RuntimeError where torch cannot do it."""
    x = torch.ones(2, 3, 8, 8, device=accelerator)
    weight = torch.ones(4, 3, 3, 3, device=accelerator, requires_grad=True)
    functional.conv2d(x, weight, padding=1).sum().backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    weight.grad.sum().item()


def accelerator_facts(accelerator: torch.device) -> dict[str, str]:
    """What the agent tells of it when it joins."""
    name = torch.cuda.get_device_name(accelerator) if accelerator.type == "cuda" else "cpu"
    return {"accelerator": name}


def settle(accelerator: torch.device) -> None:
    """Have cuDNN use its deterministic algorithms in this process, so that a run repeats on the same board."""
    if accelerator.type == "cuda":
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False


def wait_for(accelerator: torch.device) -> None:
    """Until the accelerator has done what it was given."""
    if accelerator.type == "cuda":
        torch.cuda.synchronize(accelerator)


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
