"""CUDA as an agent, the trainer and the simulator use it: whether it works, and its settings."""

from __future__ import annotations

import torch
from torch.nn import functional

CPU = torch.device("cpu")


def why_not_cuda() -> str:
    """ "" where CUDA works. It is tried with a convolution, forward and backward: a build of torch for other graphics
    processors is found, and fails."""
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


def settle(accelerator: torch.device) -> None:
    """Have cuDNN use its deterministic algorithms in this process, so that a run repeats on the same board."""
    if accelerator.type == "cuda":
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False


def wait_for(accelerator: torch.device) -> None:
    """Until the accelerator has done what it was given."""
    if accelerator.type == "cuda":
        torch.cuda.synchronize(accelerator)
