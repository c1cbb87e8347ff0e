"""What a round driver needs of the parts around it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from edgebed.methods.base import Batch, Method
from edgebed.methods.parts.evaluation import Score
from edgebed.models.staged import Weights
from edgebed.wire.messages import Assignment
from orchestrator.records.server_records import Spent
from orchestrator.training.server import Reading, StepResult


class Trainer(Protocol):
    """What the driver needs of `training.server.HalfTrainer`."""

    made: Spent | None

    async def open(self, method: Method, weights: Weights, assignments: Mapping[str, Assignment]) -> set[str]: ...
    async def submit(self, device: str, batch: int, tensors: Weights) -> StepResult | None: ...
    def drop(self, device: str) -> None: ...
    async def finish(self, device: str, batches: int) -> Weights: ...
    def reading(self, device: str) -> Reading | None: ...
    def busy_s(self, device: str) -> float: ...


class Evaluator(Protocol):
    """Tests weights: in this process, or in the trainer's."""

    async def evaluate(self, method: Method, weights: Weights, samples: Batch) -> Score:
        """`Method.evaluate`."""

    async def final(self, method: Method, weights: Weights, validation: Batch, test: Batch) -> Score:
        """`Method.final`."""
