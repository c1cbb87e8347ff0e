"""What a round driver needs of the parts around it."""

from __future__ import annotations

from typing import Protocol

from edgebed.methods.base import ServerHalf
from edgebed.models.staged import Weights


class StepResult(Protocol):
    """One step of a server half. Times in monotonic nanoseconds."""

    @property
    def start_ns(self) -> int: ...
    @property
    def end_ns(self) -> int: ...
    @property
    def devices(self) -> tuple[str, ...]: ...
    @property
    def replies(self) -> Weights: ...


class Trainer(Protocol):
    """What the driver needs of `training.server.ServerTrainer`."""

    def begin(self, halves: list[ServerHalf]) -> None: ...
    async def submit(self, device: str, batch: int, tensors: Weights) -> StepResult | None: ...
    def drop(self, device: str) -> None: ...
    async def finish(self, device: str, batches: int) -> Weights: ...
    def busy_s(self, device: str) -> float: ...
