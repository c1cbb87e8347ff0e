"""Tests weights in this process, on a worker thread or on the virtual clock."""

from __future__ import annotations

import torch

from edgebed.methods.base import Batch, Method
from edgebed.methods.parts.evaluation import Score
from edgebed.models.staged import Weights
from orchestrator.rounds.event_loop import in_thread


class LocalEvaluator:
    """An `Evaluator` whose work is done here, on `accelerator`."""

    def __init__(self, accelerator: torch.device) -> None:
        self._accelerator = accelerator

    async def evaluate(self, method: Method, weights: Weights, samples: Batch) -> Score:
        return await in_thread("evaluation", method.evaluate, weights, *samples, self._accelerator)

    async def final(self, method: Method, weights: Weights, validation: Batch, test: Batch) -> Score:
        return await in_thread("final_test", method.final, weights, validation, test, self._accelerator)
