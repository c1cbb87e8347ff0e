"""Starts the devices' halves: those that are alike together, the others each on a model of its own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import msgspec
import torch

from edgebed.datasets.shard import Shard
from edgebed.errors import in_words
from edgebed.models.staged import StagedModel, Weights
from edgebed.wire.codecs import decode_tensors
from edgebed.wire.messages import Assignment
from orchestrator.simulation.batched import BatchedTrainer, Row, fits, kind_of
from orchestrator.simulation.halves import Execution, Unbatched

Body = bytes | bytearray
LEAST = 2
"""Devices that are worth stacking."""


class HalfPool:
    """Halves of the tasks in hand. Told of every task when it is sent, so that at the first start of a kind all its
    devices are known.

    Attributes:
        together, alone: how many halves were started so.
    """

    def __init__(
        self,
        model: StagedModel,
        shards: Mapping[str, Shard],
        accelerator: torch.device,
        *,
        batched: bool,
        notify: Callable[[str], None],
    ) -> None:
        self._model, self._shards, self._accelerator = model, shards, accelerator
        self._batched, self._notify = batched, notify
        self._expected: dict[bytes, dict[str, tuple[Assignment, Body]]] = {}
        self._rows: dict[str, tuple[Assignment, Row]] = {}
        self._alone: set[bytes] = set()  # kinds that torch cannot stack
        self.together = self.alone = 0

    def expect(self, assignment: Assignment, body: Body) -> None:
        """A task is on its way."""
        assignment = self._own(assignment)
        self.forget(assignment.device)
        kind = kind_of(assignment, self._shards[assignment.device]) if self._batched else None
        if kind is not None and kind not in self._alone:
            self._expected.setdefault(kind, {})[assignment.device] = (assignment, body)

    def forget(self, device: str) -> None:
        """Its task is wanted no longer."""
        self._rows.pop(device, None)
        for waiting in self._expected.values():
            waiting.pop(device, None)

    def start(self, device: str, assignment: Assignment, weights: Weights) -> Execution:
        own = self._own(assignment)
        if device not in self._rows:
            self._train_with(own)
        known = self._rows.pop(device, None)
        if known is not None and known[0] == own:
            self.together += 1
            return known[1]
        self.alone += 1
        self.forget(device)
        return Unbatched(self._model, assignment, self._shards[device], weights)

    def _own(self, assignment: Assignment) -> Assignment:
        """As the device has it, its quota aside: halves that look at that are not stacked."""
        return msgspec.structs.replace(assignment, privacy=self._shards[assignment.device].privacy, cpus=0.0)

    def _train_with(self, assignment: Assignment) -> None:
        """Train this device with as many of its kind as fit."""
        kind = kind_of(assignment, self._shards[assignment.device])
        waiting = self._expected.get(kind, {}) if kind is not None else {}
        if kind is None or assignment.device not in waiting or kind in self._alone:
            return
        room = fits(self._model, assignment, self._shards[assignment.device])
        others = [name for name in waiting if name != assignment.device][: room - 1]
        if 1 + len(others) < LEAST:
            return
        chosen = {name: waiting.pop(name) for name in (assignment.device, *others)}
        try:
            rows = self._together(chosen)
        except Exception as error:  # what torch cannot stack; an error of one half then fails that half alone
            self._alone.add(kind)
            why = in_words(error)
            self._notify(f"halves of {assignment.objective} at cut {assignment.stages} train one by one: {why}")
            return
        for (name, (own, _)), row in zip(chosen.items(), rows, strict=True):
            self._rows[name] = (own, row)

    def _together(self, chosen: Mapping[str, tuple[Assignment, Body]]) -> list[Row]:
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
