"""Starts the devices' halves: equal halves as one stacked network, the others each on a copy of the model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial

import msgspec
import torch

from edgebed.datasets.shard import Shard
from edgebed.device.batches import Batches
from edgebed.device.core import Body, begin_half
from edgebed.errors import in_words
from edgebed.methods.parts.local_training import Half
from edgebed.models.staged import StagedModel, Weights
from edgebed.wire.codecs import decode_tensors
from edgebed.wire.messages import Assignment
from orchestrator.simulation.batched import (
    BUDGET_BYTES,
    LAYER_FLOPS,
    BatchedTrainer,
    StackedPart,
    fits,
    kind_of,
    layer_flops,
    row_bytes,
)

BeginAlone = Callable[[StagedModel, Assignment, Body, Batches, Weights], Half]
ALONE: BeginAlone = partial(begin_half, keep=True)

LEAST = 2
"""The least number of devices that are stacked."""


class HalfPool:
    """The halves of the current tasks, all of which train on the accelerator. The fleet tells it of every task that is
    sent, so that all devices of a kind are known when the first of them begins. Only devices of one round train
    together: the bits depend on who trains together, and a simulation that goes on does rounds in hand again, but not
    those that ran beside them and have ended.

    Args:
        shards: their batches go to the accelerator (`Shard.accelerator`).
        memory_bytes: that devices which train together may take.
        begin: starts a half on its own, on a copy of the model.

    Attributes:
        together, alone: how many halves were trained in a stack, and on their own.
    """

    def __init__(
        self,
        model: StagedModel,
        shards: Mapping[str, Shard],
        accelerator: torch.device,
        *,
        batched: bool,
        notify: Callable[[str], None],
        memory_bytes: int = BUDGET_BYTES,
        begin: BeginAlone = ALONE,
    ) -> None:
        self._model = model if accelerator.type == "cpu" else copy.deepcopy(model).to(accelerator)
        self._shards, self._accelerator = shards, accelerator
        self._memory_bytes, self._kinds = memory_bytes, dict[bytes, int]()
        self._batched, self._notify, self._begin = batched, notify, begin
        self._layer_flops = dict[tuple[int, int, int], float]()  # by stages, first trained stage, and samples of a step
        self._expected: dict[tuple[int, bytes], dict[str, tuple[Assignment, Body]]] = {}  # by round and kind
        self._rows: dict[str, tuple[Assignment, StackedPart]] = {}
        self._alone: set[bytes] = set()  # kinds that cannot be stacked
        self.together = self.alone = 0

    def expect(self, round: int, assignment: Assignment, body: Body) -> None:
        """A task of a round was sent."""
        assignment = self._own(assignment)
        self.forget(assignment.device)
        kind = kind_of(assignment, self._shards[assignment.device]) if self._batched and not self._model.uncut else None
        if kind is not None and kind not in self._alone:
            self._expected.setdefault((round, kind), {})[assignment.device] = (assignment, body)

    def forget(self, device: str) -> None:
        """The task of this device is no longer wanted."""
        self._rows.pop(device, None)
        for waiting in self._expected.values():
            waiting.pop(device, None)
        self._expected = {key: waiting for key, waiting in self._expected.items() if waiting}

    def begin(self, assignment: Assignment, body: Body, batches: Batches, kept: Weights) -> Half:
        """As `device.core.Begin`. The work is done at the first `send`: the time of decoding has passed then, and every
        device that trains with this one has been sent its task."""
        device, own = assignment.device, self._own(assignment)
        if device not in self._rows:
            self._train_with(own)
        known = self._rows.pop(device, None)
        if known is not None and known[0] == own:
            self.together += 1
            return (yield from known[1].half(batches))
        self.alone += 1
        self.forget(device)
        half = self._begin(self._model, assignment, body, batches, kept)
        del body
        return (yield from half)

    def _own(self, assignment: Assignment) -> Assignment:
        """As the device has it, but without its quota: halves that read the quota are not stacked."""
        return msgspec.structs.replace(assignment, privacy=self._shards[assignment.device].privacy, cpus=0.0)

    def _train_with(self, assignment: Assignment) -> None:
        """Train this device with as many others of its round and kind as fit into memory."""
        found = ((kind, waiting) for (_, kind), waiting in self._expected.items() if assignment.device in waiting)
        kind, waiting = next(found, (b"", {}))
        if not waiting or kind in self._alone:
            return
        if kind not in self._kinds:
            if self._is_slower_together(assignment):
                self._alone.add(kind)
                return
            self._kinds[kind] = row_bytes(self._model, assignment, self._shards[assignment.device])
        room = fits(self._memory_bytes, self._kinds[kind])
        others = [name for name in waiting if name != assignment.device][: room - 1]
        if 1 + len(others) < LEAST:
            return
        chosen = {name: waiting.pop(name) for name in (assignment.device, *others)}
        try:
            rows = self._together(chosen)
        except Exception as error:  # torch cannot stack this; each half then trains, and fails, alone
            self._alone.add(kind)
            why = in_words(error)
            self._notify(f"halves of {assignment.objective} at cut {assignment.stages} train one by one: {why}")
            return
        for (name, (own, _)), row in zip(chosen.items(), rows, strict=True):
            self._rows[name] = (own, row)

    def _is_slower_together(self, assignment: Assignment) -> bool:
        if self._accelerator.type != "cpu":
            return False
        samples = min(self._shards[assignment.device].samples, assignment.batch_size)
        key = (assignment.stages, assignment.train_from, samples)
        if key not in self._layer_flops:
            self._layer_flops[key] = layer_flops(self._model, assignment, samples)
        return self._layer_flops[key] > LAYER_FLOPS

    def _together(self, chosen: Mapping[str, tuple[Assignment, Body]]) -> list[StackedPart]:
        decoded: dict[int, Weights] = {}
        for _, body in chosen.values():
            if id(body) not in decoded:  # devices of one cut share a body
                decoded[id(body)] = decode_tensors(body)
        return BatchedTrainer(
            copy.deepcopy(self._model),
            [assignment for assignment, _ in chosen.values()],
            [self._shards[name] for name in chosen],
            [decoded[id(body)] for _, body in chosen.values()],
            self._accelerator,
        ).train()
