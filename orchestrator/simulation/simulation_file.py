"""`simulation.json`: what a simulation goes on with that its experiment file does not tell."""

from __future__ import annotations

from pathlib import Path

import msgspec
import torch

from edgebed.errors import UsageError
from orchestrator.references.reference import Reference
from orchestrator.runs.folder import RunFolder
from orchestrator.simulation.batched import BUDGET_BYTES, memory_bytes


class SimulationFile(msgspec.Struct, frozen=True):
    """What the bits and costs of a simulation depend on, and how often it is saved."""

    # `torch`, `simd`: torch's version, and the instructions of the CPU that it uses
    torch: str
    simd: str
    accelerator: str
    # `devices`, `built`: as in `SimulationRequest`
    devices: int | None = None
    built: bool = False
    memory_bytes: int = BUDGET_BYTES  # that devices which train together may take (`batched.memory_bytes`)
    reference: Reference | None = None  # whose costs they are; None: of none
    calibration: None = None  # older versions took costs from one, and no run goes on with it
    checkpoint_s: float | None = None  # as in `SimulationRequest`


def file_now(
    before: SimulationFile | None, devices: int | None, accelerator: torch.device, built: bool
) -> SimulationFile:
    """That of a new simulation; `before`, where one goes on.

    Raises:
        UsageError: it was begun with another torch, or on another kind of CPU, which gives other bits.
    """
    version, simd = str(torch.__version__), torch.backends.cpu.get_cpu_capability()
    if before is None:
        return SimulationFile(version, simd, str(accelerator), devices, built, memory_bytes(accelerator))
    if (before.torch, before.simd) != (version, simd):
        raise UsageError(
            f"the simulation was begun with torch {before.torch} on a CPU with {before.simd}; here are torch {version} "
            f"and {simd}",
            hint="other bits would come of it: go on where it was begun, or simulate anew",
        )
    return before


def read_file(folder: Path) -> SimulationFile:
    """That of a run. Raises UsageError where the file is damaged."""
    path = RunFolder(folder).simulation
    try:
        return msgspec.json.decode(path.read_bytes(), type=SimulationFile)
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{path}: {error}", hint="simulate anew") from None
