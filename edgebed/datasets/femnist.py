"""FEMNIST: handwritten characters with their writers, from LEAF's JSON files on disk (Caldas et al. 2018)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits

import msgspec
import numpy as np
import torch
from torch import Tensor

from edgebed.datasets.base import Count, DataSet, Part, Source, Subset
from edgebed.errors import UsageError

CLASSES = [*digits, *ascii_uppercase, *ascii_lowercase]
FILES = "LEAF's FEMNIST files as femnist/train/*.json and femnist/test/*.json"

Written = tuple[Tensor, Tensor]
"""One writer's samples: x (n, 1, side, side) uint8, y (n,) int64."""


class _File(msgspec.Struct):
    """Samples stay undecoded until they are used: as Python floats, a whole file would take many times its size."""

    users: list[str]
    user_data: dict[str, msgspec.Raw]


class _Writer(msgspec.Struct):
    x: list[list[float]]
    y: list[int]


class Femnist(DataSet):
    name = "femnist"
    summary = "LEAF's handwritten characters in 62 classes, by writer, 1x28x28"

    class Options(Subset, frozen=True, forbid_unknown_fields=True, kw_only=True):
        path: str = "femnist"  # relative to the folder of data sets; holds train/ and test/
        writers: Count = 0  # so many of them, drawn by the run's seed; 0 = all

    options: Options

    def open(self, root: Path, seed: int) -> Source:
        """Reads every file once, and holds one of them at a time. The test part leaves out training writers that
        are not in use, so it fits both of LEAF's splits, by sample and by writer **[ours]**."""
        folder = root / self.options.path
        everyone: set[str] = set()
        chosen: dict[str, Written] = {}
        for name, raw, path in _writers(folder / "train"):
            if name in everyone:
                raise UsageError(f"{path}: writer {name!r} is there twice", hint=f"put {FILES}, each file once")
            everyone.add(name)
            self._enter(chosen, name, raw, path, seed)
        left_out = everyone - set(chosen)
        tested = {n: _decode(n, raw, path) for n, raw, path in _writers(folder / "test") if n not in left_out}
        return Source(_part(chosen, folder / "train"), _part(tested, folder / "test"), CLASSES)

    def _enter(self, chosen: dict[str, Written], name: str, raw: msgspec.Raw, path: Path, seed: int) -> None:
        """Keep the writers that come first in an order drawn by `seed`. The order does not depend on files not yet
        read."""
        count = self.options.writers
        last = max(chosen, key=lambda other: _rank(seed, other)) if 0 < count <= len(chosen) else None
        if last is not None and _rank(seed, name) > _rank(seed, last):
            return
        chosen[name] = _decode(name, raw, path)
        if last is not None:
            del chosen[last]


def _rank(seed: int, name: str) -> bytes:
    return hashlib.sha256(f"{seed}/{name}".encode()).digest()


def _writers(folder: Path) -> Iterator[tuple[str, msgspec.Raw, Path]]:
    """Name and undecoded samples of every writer, file by file."""
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise UsageError(
            f"there are no JSON files in {folder}", hint=f"put {FILES} into the folder that EDGEBED_DATA names"
        )
    for path in paths:
        try:
            file = msgspec.json.decode(path.read_bytes(), type=_File)
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}", hint="make the file readable") from None
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise _damaged(path, str(error)) from None
        for name in file.users:
            if name not in file.user_data:
                raise _damaged(path, f"no samples of writer {name!r}")
            yield name, file.user_data[name], path


def _decode(name: str, raw: msgspec.Raw, path: Path) -> Written:
    """LEAF divides bytes by 255, so they come back as they were."""
    try:
        writer = msgspec.json.decode(raw, type=_Writer)
        x = np.array(writer.x, dtype=np.float32)
    except (msgspec.DecodeError, ValueError) as error:
        raise _damaged(path, f"writer {name!r}: {error}") from None
    side = math.isqrt(x.shape[-1]) if x.ndim == 2 else 0
    if len(x) != len(writer.y) or (len(x) and side * side != x.shape[-1]):
        raise _damaged(path, f"writer {name!r}: samples of shape {x.shape} with {len(writer.y)} labels")
    if not all(0 <= label < len(CLASSES) for label in writer.y) or not ((x >= 0) & (x <= 1)).all():
        raise _damaged(path, f"writer {name!r}: a label outside 0..{len(CLASSES) - 1}, or a value outside 0..1")
    pixels = torch.from_numpy(np.rint(x * 255).astype(np.uint8))
    return pixels.reshape(len(x), 1, side, side), torch.tensor(writer.y, dtype=torch.int64)


def _part(found: dict[str, Written], folder: Path) -> Part:
    """In the order of names, whatever file a writer is in."""
    pairs = [found[name] for name in sorted(found) if len(found[name][1])]
    if len({x.shape[1:] for x, _ in pairs}) > 1:
        raise _damaged(folder, "pictures of more than one size")
    if not pairs:
        return Part(torch.zeros(0, dtype=torch.int64), lambda rows: torch.zeros(0, 1, 28, 28))
    x, y = torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])
    writers = torch.repeat_interleave(torch.tensor([len(y) for _, y in pairs]))
    return Part(y, x.__getitem__, writers)


def _damaged(path: Path, why: str) -> UsageError:
    return UsageError(f"{path} is damaged or none of LEAF's files: {why}", hint="fetch or make the file again")
