"""A device's data as one safetensors file, and its batches in an order that is the same on every machine.

A shard needs no data-set library: samples as stored (uint8 or float32), labels, and how to normalise. Data never
crosses MQTT (docs/data.md).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from edgebed.datasets.augment import cropped, cut_out, draws
from edgebed.errors import UsageError
from edgebed.models.learning import blank_x, blank_y
from edgebed.wire.order import batch_bounds, shuffled
from edgebed.wire.settings import Augment, LearningTask, Privacy

VERSION = 3
MOST_CLASSES = 1_000_000
CPU = torch.device("cpu")
NOTHING_HIDDEN = Privacy()
UNCHANGED = Augment()
SMALL = LearningTask((1, 8, 8), 2)


class About(msgspec.Struct, frozen=True):
    """What the file says about its samples. Mean and std are per channel of a picture or column of a table, after uint8
    has been scaled to 0..1; tokens have none, but a `vocabulary`.
    `privacy` stands here because the shard is the only data that belongs to a device."""

    version: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: int
    privacy: Privacy = Privacy()
    vocabulary: int = 0


class Shard:
    """One device's samples.

    Attributes:
        x: (N, *input_shape), as stored: uint8 or float32, or int64 tokens.
        y: (N, *answer_shape) int64.
        task: what is learned from them.
        label_counts: samples per class; of all where a sample has more than one answer.
        sha256: of the file.
        privacy: what this device does to its features.
        accelerator: where the batches go; the samples stay in main memory.

    Raises:
        UsageError: no agent could train on them.
    """

    def __init__(self, x: Tensor, y: Tensor, about: About, sha256: str, accelerator: torch.device = CPU) -> None:
        check(x, y, about)
        self.x, self.y, self.sha256 = x, y, sha256
        self.samples, self.task = len(y), task_of(x, y, about.classes, about.vocabulary)
        self.label_counts = label_counts(y, about.classes)
        self.privacy, self.accelerator = about.privacy, accelerator
        self._mean, self._std = about.mean, about.std

    def batches(
        self, batch_size: int, epochs: int, max_batches: int, seed: int, augment: Augment = UNCHANGED
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """x (B, *input_shape), normalised, and y (B, *answer_shape), shuffled anew each epoch by `seed`.

        Args:
            max_batches: per epoch; 0 = all.
        """
        for epoch in range(epochs):
            order = shuffled(self.samples, seed, epoch)
            drawn = draws(self.samples, seed, epoch) if augment != UNCHANGED else None
            for start, stop in batch_bounds(self.samples, batch_size, max_batches):
                rows = order[start:stop]
                x = self._samples(rows, None if drawn is None else drawn[rows], augment)
                yield x.to(self.accelerator), self.y[rows].to(self.accelerator)

    def _samples(self, rows: Tensor, drawn: Tensor | None, augment: Augment) -> Tensor:
        x = self.x[rows]
        if drawn is not None and (augment.crop or augment.flip):
            x = cropped(x, drawn, augment)
        x = normalise(x, self._mean, self._std)
        return cut_out(x, drawn, augment) if drawn is not None and augment.cutout else x

    def singles(self, count: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """`count` samples one by one, x (1, *input_shape) and y (1, *answer_shape): `single_rows`."""
        for row in single_rows(self.samples, count, seed):
            x = normalise(self.x[row : row + 1], self._mean, self._std)
            yield x.to(self.accelerator), self.y[row : row + 1].to(self.accelerator)


def single_rows(samples: int, count: int, seed: int) -> list[int]:
    """The rows of `count` samples in an order that `seed` fixes; all of them before any comes again."""
    epochs = math.ceil(count / samples)
    return [int(row) for epoch in range(epochs) for row in shuffled(samples, seed, epoch)][:count]


def task_of(x: Tensor, y: Tensor, classes: int, vocabulary: int) -> LearningTask:
    """What is learned from samples x (N, *input_shape) and answers y (N, *answer_shape)."""
    return LearningTask(tuple(x.shape[1:]), classes, vocabulary, per_token=y.ndim > 1)


def label_counts(y: Tensor, classes: int) -> list[int]:
    """Samples per class of y (N,); the number of samples alone where each has several answers."""
    return torch.bincount(y, minlength=classes).tolist() if y.ndim == 1 else [len(y)]


def normalise(x: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(x - mean) / std per channel or column, uint8 scaled to 0..1 first. (N, C, ...) -> the same in float32; int64
    tokens stay as they are."""
    if x.dtype == torch.int64:
        return x
    scaled = x.to(torch.float32) / 255.0 if x.dtype == torch.uint8 else x
    each = (1, -1, *[1] * (x.ndim - 2))
    return (scaled - torch.tensor(mean).view(each)) / torch.tensor(std).view(each)


def check(x: Tensor, y: Tensor, about: About) -> None:
    """Raises UsageError, naming the fault, for data that no agent could train on."""
    kinds = (torch.int64,) if about.vocabulary else (torch.uint8, torch.float32)
    if x.ndim not in ((2,) if about.vocabulary else (2, 4)) or not x.numel() or x.dtype not in kinds:
        raise UsageError(
            f"samples of shape {tuple(x.shape)}, {x.dtype}",
            hint="give (N, T) int64 below the vocabulary"
            if about.vocabulary
            else "give (N, C, H, W) or (N, F), uint8 or float32",
        )
    if about.vocabulary and not 0 <= int(x.min()) <= int(x.max()) < about.vocabulary:
        raise UsageError(f"tokens {int(x.min())}..{int(x.max())} of {about.vocabulary}", hint="count from 0")
    if y.shape not in ((x.shape[:1], x.shape) if about.vocabulary else (x.shape[:1],)) or y.dtype != torch.int64:
        raise UsageError(f"labels of shape {tuple(y.shape)}, {y.dtype}", hint=f"give ({len(x)},) int64")
    if not 1 <= about.classes <= MOST_CLASSES or int(y.min()) < 0 or int(y.max()) >= about.classes:
        raise UsageError(f"labels {int(y.min())}..{int(y.max())} for {about.classes} classes", hint="count from 0")
    finite = all(math.isfinite(m) for m in about.mean) and all(math.isfinite(s) and s > 0 for s in about.std)
    if not finite or not len(about.mean) == len(about.std) == (0 if about.vocabulary else x.shape[1]):
        raise UsageError(
            f"mean {about.mean} and std {about.std} for {x.shape[1]} channels",
            hint="give each channel a finite mean and a std above 0",
        )


def write_shard(
    path: Path,
    x: Tensor,
    y: Tensor,
    mean: Sequence[float],
    std: Sequence[float],
    classes: int,
    privacy: Privacy = NOTHING_HIDDEN,
    vocabulary: int = 0,
) -> None:
    """Write a device's data. Raises UsageError for what no agent could train on, and where the file cannot be."""
    about = About(VERSION, tuple(mean), tuple(std), classes, privacy, vocabulary)
    check(x, y, about)
    metadata = {"edgebed-shard": msgspec.json.encode(about).decode()}
    try:
        save_file({"x": x.contiguous(), "y": y.contiguous()}, path, metadata)
        path.chmod(0o644)  # an agent in a container is another user
    except (OSError, SafetensorError) as error:
        raise UsageError(
            f"{path} cannot be written: {error}", hint="free some space, or choose another folder"
        ) from None


def blank_shard(
    task: LearningTask, samples: int, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor, About]:
    """Samples without meaning, x and y as in `Shard`, and what is said of them: zeros, or drawn by a generator."""
    if task.vocabulary:
        x, channels = blank_x(task, samples, generator), tuple[float, ...]()
    else:
        shape, channels = (samples, *task.input_shape), (0.5,) * task.input_shape[0]
        x = torch.zeros(shape, dtype=torch.uint8)
        if generator is not None:
            x.random_(256, generator=generator)
    return x, blank_y(task, samples), About(VERSION, channels, channels, task.classes, vocabulary=task.vocabulary)


def write_idle_shard(path: Path, *, samples: int = 2, task: LearningTask = SMALL) -> None:
    """A shard of noise, for a device without a run or one that only measures time."""
    x, y, about = blank_shard(task, samples, torch.Generator().manual_seed(0))
    write_shard(path, x, y, about.mean, about.std, about.classes, vocabulary=about.vocabulary)


def sha256_of(path: Path) -> str:
    """Of a file's content. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def read_shard(path: Path, accelerator: torch.device = CPU) -> Shard:
    """Read a shard file. Raises UsageError for one that is missing, damaged, or no shard."""
    try:
        sha256 = sha256_of(path)
        with safe_open(path, framework="pt") as file:
            about = msgspec.json.decode((file.metadata() or {})["edgebed-shard"], type=About)
            x, y = file.get_tensor("x"), file.get_tensor("y")
    except OSError as error:
        raise UsageError(
            f"{path}: {error.strerror or error}", hint="give the path of this device's shard file"
        ) from None
    except (SafetensorError, msgspec.DecodeError, KeyError, ValueError, RuntimeError) as error:
        raise UsageError(f"{path} is damaged or no shard: {error}", hint="write the shard file again") from None
    if about.version != VERSION:
        raise UsageError(f"{path} is a shard of version {about.version}", hint="write it with this version of Edgebed")
    try:
        return Shard(x, y, about, sha256, accelerator)
    except UsageError as error:
        raise UsageError(f"{path}: {error}", hint="write the shard file again") from None
