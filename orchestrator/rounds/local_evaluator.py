"""Tests weights in this process, on a worker thread or on the virtual clock."""

from __future__ import annotations

import asyncio

import torch

from edgebed.methods.base import Batch, Method
from edgebed.methods.parts.evaluation import Score
from edgebed.models.staged import Weights


class LocalEvaluator:
    """An `Evaluator` whose work is done here, on `accelerator`."""

    def __init__(self, accelerator: torch.device) -> None:
        self._accelerator = accelerator

    async def evaluate(self, method: Method, weights: Weights, samples: Batch) -> Score:
        return await asyncio.to_thread(method.evaluate, weights, *samples, self._accelerator)

    async def final(self, method: Method, weights: Weights, validation: Batch, test: Batch) -> Score:
        return await asyncio.to_thread(method.final, weights, validation, test, self._accelerator)
