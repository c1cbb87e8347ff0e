"""What goes between device halves, rounds and merges. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec
import torch

from edgebed.models.staged import Weights
from edgebed.wire.messages import Assignment, Report

Origin = Literal["none", "new", "kept", "restored"]
"""What a half began with of the device state: its method keeps none; there was none, or it is gone; what the device had
kept; the server's copy."""

Worth = Callable[[Assignment, int, int], int]
"""Of an assignment, the number of a batch (0, 1, …) and its samples: with how many samples a batch of the work that the
assignment is charged as (`base.real_work`) costs as much."""

WORTHS: dict[str, Worth] = {}  # of objectives whose batches do not all cost alike


def batch_worth(assignment: Assignment, number: int, samples: int) -> int:
    """The size by which batch `number` is charged: its samples, unless its half says otherwise."""
    worth = WORTHS.get(assignment.objective)
    return samples if worth is None else worth(assignment, number, samples)


UNMEASURED = Report(0, 0, 0.0, 0.0, 0.0, None, 0, 0.0, 0, 0.0, 0.0)


class Outcome(msgspec.Struct, frozen=True):
    """How an assignment went, for the next plan. `seconds` is the whole round for this device, on the
    orchestrator's clock, until its last server step; `link_bytes_s` the measured speed of its link."""

    device: str
    assignment: Assignment
    report: Report
    seconds: float
    communication_s: float
    link_bytes_s: float
    server_s: float  # busy seconds of its server half


class Contribution(msgspec.Struct, frozen=True):
    """What one device gives to the merge: its trained device half and its server half (empty for FedAvg)."""

    device: str
    samples: int
    assignment: Assignment
    weights: Weights
    server_weights: Weights
    extra: Weights = {}  # what its update held beside weights
    report: Report = UNMEASURED
    base: Weights = {}  # the global weights when its round began
    state: Origin = "none"


class Stream(msgspec.Struct, frozen=True):
    """One tensor of an upload: (samples of the batch, *shape), of this dtype. Of an `extra`: shape."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class Outgoing(msgspec.Struct, frozen=True):
    """What a device half yields: tensors to upload, and whether it waits for the reply."""

    tensors: Weights
    samples: int
    wait: bool = False


class Trained(msgspec.Struct, frozen=True):
    """What a device half returns: the weights to send up, the mean loss, the number of batches, what it has to
    tell the method (`Report.notes`), tensors to send up beside the weights (`Contribution.extra`), and the device
    state: tensors that stay on the device and are `StagedModel.kept` in its next task of the run."""

    weights: Weights
    loss: float
    batches: int
    notes: dict[str, float] = {}
    extra: Weights = {}
    state: Weights = {}
