"""The papers' formulas: DTFL's eq. 5 from timed halves, S²FL's eq. 1 from FLOPs, FedPMT from its counts.

In all of them a device's seconds are work ÷ speed and a link's are bytes ÷ rate. There are no quota periods, no latency
and no cost of encoding, and the orchestrator takes no time.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

from edgebed.device.pieces import FIRST, STEP
from edgebed.methods.base import CutCost
from edgebed.models.costs import size_bytes
from edgebed.models.learning import task_at
from edgebed.models.staged import StagedModel
from edgebed.wire.messages import Assignment, Cost
from edgebed.wire.settings import Codec
from orchestrator.references.work_laws import WorkLaws
from orchestrator.simulation.costs import BatchCost, CostModel
from orchestrator.simulation.counts import Flops, Operations


class PaperCosts(CostModel, ABC):
    """The common part of the papers' cost models: batches and the server's steps take time, nothing else does."""

    @abstractmethod
    def work(self, assignment: Assignment, samples: int) -> BatchCost:
        """One batch of the device half."""

    def piece_s(self, assignment: Assignment, kind: str, size: int) -> float:
        match kind.removeprefix(FIRST):
            case "forward" | "more":
                return self.work(assignment, size).forward_s
            case "rest":
                return self.work(assignment, size).rest_s
            case "batch":
                return self.work(assignment, size).total_s
            case _:
                return 0.0

    def server_s(self, method: str, work: Sequence[tuple[Assignment, str, int]]) -> float:
        """Only steps take time."""
        return sum(self.server_step_s(assignment, samples) for assignment, kind, samples in work if kind.endswith(STEP))

    @abstractmethod
    def server_step_s(self, assignment: Assignment, samples: int) -> float:
        """A step of a server half with one upload of one of its devices."""


BYTES = {"float32": 4, "float16": 2, "uint8": 1}


def cut_cost(model: StagedModel, cut: int, samples: float, codec: Codec, device_s: float, server_s: float) -> CutCost:
    """The costs of a cut with a batch of so many samples. `device_s`, `server_s`: seconds of that batch on both
    sides."""
    weights, elements = model.weights(), math.prod(model.feature_shape(cut))
    return CutCost(
        cut=cut,
        model_bytes=size_bytes({name: weights[name] for name in model.trained_below(cut)}),
        feature_bytes=int(samples * (elements * BYTES[codec.dtype] + 8)),
        device_s=device_s,
        server_s=server_s,
    )


class TimedCosts(PaperCosts):
    """DTFL: T^c = CPU seconds of the cut, timed on this host, ÷ CPUs, T^com = bytes ÷ rate, T^s = seconds of the server
    ÷ `server_speed`."""

    kind = "timed"

    def __init__(self, laws: WorkLaws, server_speed: float = 1.0) -> None:
        self.laws: WorkLaws | None = laws
        self._timed = laws
        self._server_speed = server_speed

    def work(self, assignment: Assignment, samples: int) -> BatchCost:
        law = self._timed.device_law(assignment)
        seconds = law.seconds(samples)
        return BatchCost(seconds * law.forward, seconds * (1 - law.forward))

    def server_step_s(self, assignment: Assignment, samples: int) -> float:
        return self._timed.server_law(assignment).seconds(samples) / self._server_speed


class FlopCosts(PaperCosts):
    """S²FL eq. 1: (2|W_c| + 2pq) / R + F_c / Comp_c + F_s / Comp_s, with `device_flops` for each CPU.

    The method's own transfers are counted: weights down and up, features up, gradients down. `batch_size`, `codec`: of
    the run, with which the cuts are profiled; 0: they are measured.
    """

    kind = "flops"

    def __init__(
        self, flops: Flops, device_flops: float, server_flops: float, batch_size: int = 0, codec: Codec | None = None
    ) -> None:
        self._flops, self._batch_size, self._codec = flops, batch_size, codec or Codec()
        self._device, self._server = device_flops, server_flops

    def cut_costs(self, model: StagedModel) -> dict[int, CutCost]:
        return {cut: self._cut_cost(model, cut) for cut in model.cuts_with_head if self._batch_size}

    def _cut_cost(self, model: StagedModel, cut: int) -> CutCost:
        half, samples = task_at("reference", {}, model.task, cut, "head"), self._batch_size
        device_s, server_s = self.work(half, samples).total_s, self.server_step_s(half, samples)
        return cut_cost(model, cut, samples, self._codec, device_s, server_s)

    def work(self, assignment: Assignment, samples: int) -> BatchCost:
        forward, backward = self._flops.device(assignment)
        return BatchCost(forward * samples / self._device, backward * samples / self._device)

    def server_step_s(self, assignment: Assignment, samples: int) -> float:
        return self._flops.server(assignment) * samples / self._server


class OperationCosts(PaperCosts):
    """FedPMT's complexity: the operations of its table II ÷ the operations per second of a device."""

    kind = "operations"

    def __init__(self, operations: Operations, device_flops: float) -> None:
        self._operations = operations
        self._device = device_flops

    def task_costs(self, assignment: Assignment) -> dict[str, Cost]:
        self._operations.check(assignment)
        return {}

    def work(self, assignment: Assignment, samples: int) -> BatchCost:
        forward, backward = self._operations.batch(assignment, samples)
        return BatchCost(forward / self._device, backward / self._device)

    def server_step_s(self, assignment: Assignment, samples: int) -> float:
        self._operations.check(assignment)
        return 0.0  # there are no stages above a whole model
