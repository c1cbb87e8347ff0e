"""The batches of a task, in the order that the assignment's seed fixes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Protocol

from edgebed.datasets.shard import Shard
from edgebed.methods.base import Batch
from edgebed.methods.parts.exchange import batch_worth
from edgebed.wire.messages import Assignment


class Batches(Protocol):
    """What a device half takes its batches from."""

    samples: int  # of the shard
    # sizes of the batches that the half has taken (`batch_worth`); `run_task` reads and clears it at every step
    drawn: list[int]

    def __iter__(self) -> Iterator[Batch]: ...


class ShardBatches:
    """The batches of a shard.

    Args:
        before: called before each batch is given out. It may raise to end the task.
        after: called with the size of a batch when the half asks for the next one.
    """

    def __init__(
        self,
        shard: Shard,
        assignment: Assignment,
        before: Callable[[], None] = lambda: None,
        after: Callable[[int], None] = lambda size: None,
    ) -> None:
        self.samples, self.drawn = shard.samples, list[int]()
        self._shard, self._assignment, self._before, self._after = shard, assignment, before, after

    def __iter__(self) -> Iterator[Batch]:
        wanted = self._assignment
        epochs = wanted.steps or wanted.epochs  # an epoch has at least one batch
        limits = (wanted.max_batches, wanted.seed, wanted.augment)
        batches = islice(self._shard.batches(wanted.batch_size, epochs, *limits), wanted.steps or None)
        for number, batch in enumerate(batches):
            self._before()
            size = batch_worth(wanted, number, len(batch[1]))
            self.drawn.append(size)
            yield batch
            self._after(size)
