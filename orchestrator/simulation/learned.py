"""A simulated run that trains nothing: its accuracies are known from another run that learned the same. Everything that
takes time is as in a run that trains: batches are drawn, and tensors of the same shapes go over the links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from edgebed.device.batches import Batches
from edgebed.device.core import Body
from edgebed.methods.base import Batch, Method, Outgoing, Replies, ServerHalf, Trained
from edgebed.methods.parts.evaluation import Score
from edgebed.methods.parts.local_training import Half
from edgebed.models.staged import StagedModel, Weights
from edgebed.wire.codecs import decode_tensors
from edgebed.wire.messages import Assignment
from orchestrator.rounds.evaluator import LocalEvaluator
from orchestrator.simulation.server import SimulatedTrainer


class KnownEvaluator(LocalEvaluator):
    """Gives the accuracies that another run had, test by test; the losses are not known."""

    def __init__(self, accelerator: torch.device, tests: Sequence[float]) -> None:
        super().__init__(accelerator)
        self._tests = iter(tests)

    async def evaluate(self, method: Method, weights: Weights, samples: Batch) -> Score:
        return Score(next(self._tests), 0.0)


class IdleTrainer(SimulatedTrainer):
    """Server halves whose steps take their time and train nothing."""

    def step(self, half: ServerHalf, uploads: Mapping[str, Weights]) -> Replies:
        waiting = {device for device in uploads if self.assignments[device].objective == "server"}
        return {d: {"gradient": tensors["features"]} if d in waiting else {} for d, tensors in uploads.items()}


class IdleHalves:
    """Device halves of the objectives `head`, `output` and `server` that train nothing."""

    def __init__(self, method: Method) -> None:
        self._method = method

    def begin(self, model: StagedModel, assignment: Assignment, body: Body, batches: Batches, kept: Weights) -> Half:
        weights, streams, count = decode_tensors(body), self._method.streams(assignment), 0
        for _, y in batches:
            count += 1
            if "features" in assignment.uploads:
                tensors = {name: torch.zeros(len(y), *each.shape, dtype=each.dtype) for name, each in streams.items()}
                yield Outgoing(tensors, len(y), wait=assignment.objective == "server")
        names = self._method.update_names(assignment, {})
        return Trained({name: weights[name] for name in names}, 0.0, count)
