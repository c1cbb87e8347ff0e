"""Tests weights: in the trainer's process, or in this one."""

from __future__ import annotations

import asyncio
from typing import Protocol

import torch

from edgebed.methods.base import Batch, Method
from edgebed.methods.parts.evaluation import Score
from edgebed.models.staged import Weights


class Evaluator(Protocol):
    """Tests weights: in this process, or in the trainer's."""

    async def evaluate(self, method: Method, weights: Weights, samples: Batch) -> Score:
        """`Method.evaluate`."""

    async def final(self, method: Method, weights: Weights, validation: Batch, test: Batch) -> Score:
        """`Method.final`."""


class LocalEvaluator:
    """An `Evaluator` whose work is done here, on `accelerator`."""

    def __init__(self, accelerator: torch.device) -> None:
        self._accelerator = accelerator

    async def evaluate(self, method: Method, weights: Weights, samples: Batch) -> Score:
        return await asyncio.to_thread(method.evaluate, weights, *samples, self._accelerator)

    async def final(self, method: Method, weights: Weights, validation: Batch, test: Batch) -> Score:
        return await asyncio.to_thread(method.final, weights, validation, test, self._accelerator)
