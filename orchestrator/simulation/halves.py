"""Runs a device half as an agent would and says what it did, moment by moment; how long that takes is not said here."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Protocol

import msgspec

from edgebed.datasets.shard import Shard
from edgebed.methods.base import Batch, Outgoing, Trained, find_half
from edgebed.models.staged import StagedModel, Weights
from edgebed.models.width import narrow_model
from edgebed.wire.messages import Assignment


class Step(msgspec.Struct, frozen=True):
    """What a half does until it wants something: the sizes of the batches it drew, then an upload or its end."""

    drawn: tuple[int, ...]
    out: Outgoing | None = None
    end: Trained | None = None


class Execution(Protocol):
    """A half at work. `next` gets the reply to the last upload, where it waits for one."""

    def next(self, reply: Weights | None) -> Step: ...


def batches_of(shard: Shard, assignment: Assignment) -> Iterator[Batch]:
    """The batches of a task, as `edge_agent.training` draws them: an epoch has one step at least."""
    epochs = assignment.steps or assignment.epochs
    how = (assignment.max_batches, assignment.seed, assignment.augment)
    batches = shard.batches(assignment.batch_size, epochs, *how)
    return islice(batches, assignment.steps or None)


class Unbatched:
    """The real half on a model of its own, a step at a time."""

    def __init__(self, model: StagedModel, assignment: Assignment, shard: Shard, weights: Weights) -> None:
        self._drawn: list[int] = []
        own = narrow_model(model, assignment.keep) if assignment.keep else copy.deepcopy(model)
        own.load(weights)
        self._half = find_half(assignment.objective)(own, assignment, self._counted(batches_of(shard, assignment)))

    def next(self, reply: Weights | None) -> Step:
        self._drawn.clear()
        try:
            out = self._half.send(reply)
        except StopIteration as stop:
            return Step(tuple(self._drawn), end=stop.value)
        return Step(tuple(self._drawn), out=out)

    def _counted(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        for x, y in batches:
            self._drawn.append(len(y))
            yield x, y


Start = Callable[[str, Assignment, Weights], Execution]
"""Starts a device's half: name, assignment, weights."""
