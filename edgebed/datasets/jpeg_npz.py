"""Many JPEG files in one .npz: `bytes` (all files end to end), `offsets` (N + 1), `labels`, `n_train`, `classes`.

Image i is bytes[offsets[i]:offsets[i + 1]]; the first `n_train` are for training. JPEG is lossy, so results on such a
copy are not results on the original: give it a `title` that says so, such as "CIFAR-10 (JPEG)".
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from edgebed.datasets.base import DataSet, Part, Source, Subset
from edgebed.datasets.npz import labels, names_of, read_npz
from edgebed.errors import UsageError
from edgebed.vision import picture

ARRAYS = ("bytes", "offsets", "labels", "n_train", "classes")


class JpegNpz(DataSet):
    name = "jpeg-npz"
    summary = "JPEG files packed into one .npz file"

    class Options(Subset, frozen=True, forbid_unknown_fields=True, kw_only=True):
        path: str  # relative to the folder of data sets
        title: str = ""

    options: Options

    @property
    def title(self) -> str:
        return self.options.title or self.name

    def open(self, root: Path, seed: int) -> Source:
        path = root / self.options.path
        arrays = read_npz(path, ARRAYS)
        if missing := [name for name in ARRAYS[:4] if name not in arrays]:
            raise UsageError(f"{path} holds no {', '.join(missing)}", hint="see docs/data.md for the arrays it needs")
        y, files = labels(arrays["labels"], path), memoryview(arrays["bytes"].tobytes())
        offsets, train = arrays["offsets"].astype(np.int64), int(arrays["n_train"])
        if len(offsets) != len(y) + 1 or np.diff(offsets, prepend=0).min() < 0 or offsets[-1] > len(files):
            raise UsageError(f"{path}: the offsets do not fit bytes and labels", hint="pack the pictures again")
        if not 0 < train < len(y):
            raise UsageError(f"{path}: n_train is {train} of {len(y)}", hint="leave samples for both parts")

        def part(start: int, stop: int) -> Part:
            def read(rows: Tensor) -> Tensor:
                at = [start + row for row in rows.tolist()]
                return torch.stack([picture(bytes(files[offsets[i] : offsets[i + 1]])) for i in at])

            return Part(y[start:stop], read)

        return Source(part(0, train), part(train, len(y)), names_of(arrays, y, path))
