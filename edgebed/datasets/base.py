"""What a data set is: two labelled parts whose samples are read by row, and how to normalise them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, ClassVar

import msgspec
import numpy as np
import torch
from torch import Tensor

from edgebed import datasets as _package
from edgebed.datasets.shard import task_of
from edgebed.errors import UsageError
from edgebed.plugins import Plugin, Registry
from edgebed.wire.settings import LearningTask

Count = Annotated[int, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(gt=0, lt=1)]


class Part(msgspec.Struct, frozen=True):
    """The training or the test part. y (N,) int64 from 0, (N, T) with an answer for each token; `read(rows)` gives x
    (len(rows), *input_shape): uint8 or float32, or int64 tokens; only the rows that are used are decoded. `writers`
    (N,) int64 where it is known who made a sample."""

    y: Tensor
    read: Callable[[Tensor], Tensor]
    writers: Tensor | None = None


class Source(msgspec.Struct, frozen=True):
    """A data set as its file describes it. Mean and std are per channel, after uint8 has been scaled to 0..1; where
    they are empty they are measured on the training samples in use."""

    train: Part
    test: Part
    class_names: list[str]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    vocabulary: int = 0  # of tokens


class Split(msgspec.Struct, frozen=True):
    """A loaded data set. x (N, *input_shape) uint8, float32 in any range, or int64 tokens below `vocabulary`; y (N,)
    int64 from 0, (N, T) with an answer for each token; mean and std per channel or column, after uint8 has been scaled
    to 0..1, none of tokens; `train_writers` (N,) int64 where the data set knows who made a sample.
    `validation_x` and `validation_y`, where samples were held out for it: none of them is a training sample."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    class_names: list[str]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    train_writers: Tensor | None = None
    validation_x: Tensor | None = None
    validation_y: Tensor | None = None
    vocabulary: int = 0

    @property
    def task(self) -> LearningTask:
        """What is learned from these samples."""
        return task_of(self.train_x, self.train_y, len(self.class_names), self.vocabulary)


class Subset(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of every data set: a class-balanced choice of this many samples, drawn by the run's seed; 0 = all.
    `validation`: the share of the training samples that is held out, class-balanced, to evaluate the rounds; the test
    part is then used once, at the end."""

    train_samples: Count = 0
    test_samples: Count = 0
    validation: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0


class DataSet(Plugin):
    """Base of every data set file."""

    summary: ClassVar[str] = ""

    Options = Subset
    options: Subset

    @property
    def title(self) -> str:
        """What outputs call this data."""
        return self.name

    def open(self, root: Path, seed: int) -> Source:
        """Find the data. `root` is the folder of data sets; `seed` is for sets that come without a test part.
        Raises UsageError with cause and hint."""
        raise NotImplementedError  # the seam that a data set fills

    def load(self, root: Path, seed: int) -> Split:
        """Read the samples that the options ask for. Raises UsageError where a part is empty, where all have one
        class, or as `open` does."""
        source = self.open(root, seed)
        for part, what in ((source.train, "training"), (source.test, "test")):
            if not len(part.y):
                raise UsageError(f"{self.title} has no {what} samples", hint="add some, or change how it is split")
        if len(source.class_names) < 2:
            raise UsageError(
                f"{self.title}: every answer is {source.class_names[0]!r}", hint="give data with two classes or more"
            )
        train, held = self._hold_out(source.train.y, balanced(source.train.y, self.options.train_samples, seed), seed)
        test = balanced(source.test.y, self.options.test_samples, seed)
        train_x = source.train.read(train)
        mean, std = (source.mean, source.std) if source.mean or source.vocabulary else measure(train_x)
        return Split(
            train_x=train_x,
            train_y=source.train.y[train],
            test_x=source.test.read(test),
            test_y=source.test.y[test],
            class_names=source.class_names,
            mean=mean,
            std=std,
            train_writers=None if source.train.writers is None else source.train.writers[train],
            validation_x=source.train.read(held) if len(held) else None,
            validation_y=source.train.y[held] if len(held) else None,
            vocabulary=source.vocabulary,
        )

    def _hold_out(self, y: Tensor, train: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        """The rows `train` of y without those held out for validation, and those."""
        if not self.options.validation:
            return train, train[:0]
        count = round(self.options.validation * len(train))
        if not 0 < count < len(train):
            raise UsageError(
                f"validation: {self.options.validation:g} of {len(train)} training samples are {count}",
                hint="hold out a share that leaves samples in both parts",
            )
        held = balanced(y[train], count, seed)
        left = torch.ones(len(train), dtype=torch.bool)
        left[held] = False
        return train[left], train[held]


DATASETS: Registry[DataSet] = Registry(_package, DataSet, "data set")


def classes_of(y: Tensor) -> Tensor:
    """The class of each sample, (N,), to draw and share out samples by; 0 where each has several answers."""
    return y if y.ndim == 1 else torch.zeros(len(y), dtype=torch.int64)


def in_memory(x: Tensor, y: Tensor) -> Part:
    """x (N, C, H, W) and y (N,), both here already."""
    return Part(y, x.__getitem__)


def balanced(y: Tensor, count: int, seed: int) -> Tensor:
    """Rows of a class-balanced subset of `count` samples, in their old order; all rows where there are no more."""
    if not 0 < count < len(y):
        return torch.arange(len(y))
    order = np.random.default_rng(seed).permutation(len(y))
    labels = classes_of(y).numpy()[order]
    rank = np.empty(len(y), dtype=np.int64)  # position of each sample within its class, in random order
    for label in np.unique(labels):
        where = np.flatnonzero(labels == label)
        rank[where] = np.arange(len(where))
    chosen = order[np.argsort(rank, kind="stable")[:count]]
    return torch.from_numpy(np.sort(chosen))


def hold_out(groups: Tensor, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Rows for training and for testing, for a set that comes without a test part.

    Args:
        groups: (N,) int64; samples of one group stay together (pictures of one lesion must not be in both parts).
        share: of the groups that is held out; at least one group, and never all.
    """
    names = torch.from_numpy(np.unique(groups.numpy()))
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(names)))
    count = min(max(1, round(len(names) * share)), len(names) - 1)
    held = torch.isin(groups, names[order[:count]])
    return torch.nonzero(~held).flatten(), torch.nonzero(held).flatten()


def measure(x: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel or column of x (N, C, ...), uint8 scaled to 0..1. A constant one gets
    1."""
    scale, others = 255.0 if x.dtype == torch.uint8 else 1.0, (0, *range(2, x.ndim))
    count = x.numel() // x.shape[1]
    total, squares = torch.zeros(x.shape[1], dtype=torch.float64), torch.zeros(x.shape[1], dtype=torch.float64)
    for start in range(0, len(x), 1000):  # a whole set in float64 would need eight times its memory
        values = x[start : start + 1000].to(torch.float64) / scale
        total += values.sum(others)
        squares += values.square().sum(others)
    mean = total / count
    std = (squares / count - mean.square()).clamp(min=0).sqrt()
    return tuple(mean.tolist()), tuple(s if s > 1e-6 else 1.0 for s in std.tolist())
