"""What the server's logits of the round before teach a device (FedGKT; papers.md §1.4). Pure."""

from __future__ import annotations

import msgspec
import torch
from torch import Tensor
from torch.nn import functional

from edgebed.errors import UsageError
from edgebed.models.staged import Weights
from edgebed.wire.messages import Assignment
from edgebed.wire.order import batch_bounds, shuffled


def distillation(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T² KL(softmax(teacher / T) ‖ softmax(student / T)), mean over the batch; both (B, classes)."""
    learned = functional.log_softmax(student / temperature, 1)
    known = functional.log_softmax(teacher / temperature, 1)
    return temperature**2 * functional.kl_div(learned, known, reduction="batchmean", log_target=True)


class Teacher:
    """What the server's logits of the round before teach, batch by batch."""

    def __init__(self, given: Weights, assignment: Assignment) -> None:
        self._given, self._assignment = given, assignment
        self._temperature = msgspec.convert(assignment.options["temperature"], float)
        self._bounds = row_bounds(assignment)
        self.per_epoch = len(self._bounds)

    def added(self, loss: Tensor, logits: Tensor, number: int) -> Tensor:
        """`loss` and the distillation over the samples of batch `number` that the server has logits of."""
        if "logits" not in self._given:
            return loss
        epoch, place = divmod(number, self.per_epoch)
        rows = rows_of(self._assignment, epoch, self._bounds[place])
        if len(rows) != len(logits) or len(self._given["logits"]) != samples_of(self._assignment):
            raise UsageError(
                f"the server's logits are of {len(self._given['logits'])} samples, the shard has others",
                hint="keep batch_size and max_batches, and the shards, as they were when the run began",
            )
        known = self._given["known"][rows]
        if not known.any():
            return loss
        taught = distillation(logits[known], self._given["logits"][rows][known], self._temperature)
        return loss + taught * (int(known.sum()) / len(known))


def samples_of(assignment: Assignment) -> int:
    """Samples of the device's shard."""
    return msgspec.convert(assignment.options["samples"], int)


def row_bounds(assignment: Assignment) -> list[tuple[int, int]]:
    """Where every batch of an epoch begins and ends in the epoch's order of the shard."""
    return batch_bounds(samples_of(assignment), assignment.batch_size, assignment.max_batches)


def rows_of(assignment: Assignment, epoch: int, bounds: tuple[int, int]) -> Tensor:
    """The rows of the shard in one batch: its order follows from the assignment's seed, so it need not be sent. A batch
    that goes on behind the end of the order takes rows from its beginning."""
    order = shuffled(samples_of(assignment), assignment.seed, epoch)
    return order[torch.arange(*bounds) % len(order)]
