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
from edgebed.wire.order import batch_bounds, shuffled
from edgebed.wire.settings import Augment, Privacy

VERSION = 2
MOST_CLASSES = 1_000_000
CPU = torch.device("cpu")
NOTHING_HIDDEN = Privacy()
UNCHANGED = Augment()


class About(msgspec.Struct, frozen=True):
    """What the file says about its samples. Mean and std are per channel, after uint8 has been scaled to 0..1.
    `privacy` stands here because the shard is the only data that belongs to a device."""

    version: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: int
    privacy: Privacy = Privacy()


class Shard:
    """One device's samples.

    Attributes:
        x: (N, C, H, W) uint8 or float32, as stored.
        y: (N,) int64.
        label_counts: samples per class.
        sha256: of the file.
        privacy: what this device does to its features.
        accelerator: where the batches go; the samples stay in main memory.

    Raises:
        UsageError: no agent could train on them.
    """

    def __init__(self, x: Tensor, y: Tensor, about: About, sha256: str, accelerator: torch.device = CPU) -> None:
        check(x, y, about)
        self.x, self.y, self.classes, self.sha256 = x, y, about.classes, sha256
        self.samples = len(y)
        self.label_counts = [int(n) for n in torch.bincount(y, minlength=about.classes)]
        self.privacy, self.accelerator = about.privacy, accelerator
        self._mean, self._std = about.mean, about.std

    def batches(
        self, batch_size: int, epochs: int, max_batches: int, seed: int, augment: Augment = UNCHANGED
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """x (B, C, H, W) float32, normalised, and y (B,) int64, shuffled anew each epoch by `seed`.

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
        """`count` samples one by one, x (1, C, H, W) and y (1,): `single_rows`."""
        for row in single_rows(self.samples, count, seed):
            x = normalise(self.x[row : row + 1], self._mean, self._std)
            yield x.to(self.accelerator), self.y[row : row + 1].to(self.accelerator)


def single_rows(samples: int, count: int, seed: int) -> list[int]:
    """The rows of `count` samples in an order that `seed` fixes; all of them before any comes again."""
    epochs = math.ceil(count / samples)
    return [int(row) for epoch in range(epochs) for row in shuffled(samples, seed, epoch)][:count]


def normalise(x: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(x - mean) / std per channel, uint8 scaled to 0..1 first. (N, C, H, W) -> the same in float32."""
    scaled = x.to(torch.float32) / 255.0 if x.dtype == torch.uint8 else x
    return (scaled - torch.tensor(mean).view(1, -1, 1, 1)) / torch.tensor(std).view(1, -1, 1, 1)


def check(x: Tensor, y: Tensor, about: About) -> None:
    """Raises UsageError, naming the fault, for data that no agent could train on."""
    if x.ndim != 4 or not x.numel() or x.dtype not in (torch.uint8, torch.float32):
        raise UsageError(f"samples of shape {tuple(x.shape)}, {x.dtype}", hint="give (N, C, H, W) uint8 or float32")
    if y.shape != x.shape[:1] or y.dtype != torch.int64:
        raise UsageError(f"labels of shape {tuple(y.shape)}, {y.dtype}", hint=f"give ({len(x)},) int64")
    if not 1 <= about.classes <= MOST_CLASSES or int(y.min()) < 0 or int(y.max()) >= about.classes:
        raise UsageError(f"labels {int(y.min())}..{int(y.max())} for {about.classes} classes", hint="count from 0")
    finite = all(math.isfinite(m) for m in about.mean) and all(math.isfinite(s) and s > 0 for s in about.std)
    if not finite or not len(about.mean) == len(about.std) == x.shape[1]:
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
) -> None:
    """Write a device's data. Raises UsageError for what no agent could train on, and where the file cannot be."""
    about = About(VERSION, tuple(mean), tuple(std), classes, privacy)
    check(x, y, about)
    metadata = {"edgebed-shard": msgspec.json.encode(about).decode()}
    try:
        save_file({"x": x.contiguous(), "y": y.contiguous()}, path, metadata)
        path.chmod(0o644)  # an agent in a container is another user
    except (OSError, SafetensorError) as error:
        raise UsageError(
            f"{path} cannot be written: {error}", hint="free some space, or choose another folder"
        ) from None


def write_idle_shard(
    path: Path, *, samples: int = 2, input_shape: tuple[int, ...] = (1, 8, 8), classes: int = 2
) -> None:
    """A shard of noise, for a device without a run or one that only measures time."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (samples, *input_shape), dtype=torch.uint8, generator=generator)
    channels = input_shape[0]
    write_shard(path, x, torch.arange(samples) % classes, [0.5] * channels, [0.5] * channels, classes)


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
