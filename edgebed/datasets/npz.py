"""Arrays of one's own in a NumPy .npz file.

Either x_train, y_train, x_test, y_test, or x and y, of which a part is held out for testing. x is (N, H, W),
(N, C, H, W) or (N, H, W, C) of pictures, (N, F) of a table, uint8 or another number, or (N, T) tokens below
`vocabulary`; y is (N,) or (N, 1), whole numbers from 0, or (N, T) with an answer for each token. `classes` may
hold names.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgebed.datasets.base import Count, DataSet, Share, Source, Subset, hold_out, in_memory
from edgebed.errors import UsageError

Arrays = Mapping[str, NDArray[Any]]
SPLIT = ("x_train", "y_train", "x_test", "y_test")


class Npz(DataSet):
    name = "npz"
    summary = "arrays of one's own in a NumPy .npz file"

    class Options(Subset, frozen=True, forbid_unknown_fields=True, kw_only=True):
        path: str  # relative to the folder of data sets
        channels: Literal["auto", "first", "last"] = "auto"  # auto: last where only the last side is 1 or 3
        test_share: Share = 0.2  # where the file holds x and y only
        vocabulary: Count = 0  # of tokens; 0: x holds no tokens

    options: Options

    def open(self, root: Path, seed: int) -> Source:
        path = root / self.options.path
        arrays = read_npz(path, ("classes", "x", "y", *SPLIT))
        if all(name in arrays for name in SPLIT):
            x, y = self._pair(arrays, "x_train", "y_train", path)
            test_x, test_y = self._pair(arrays, "x_test", "y_test", path)
        elif "x" in arrays and "y" in arrays:
            all_x, all_y = self._pair(arrays, "x", "y", path)
            train, test = hold_out(torch.arange(len(all_y)), self.options.test_share, seed)
            x, y, test_x, test_y = all_x[train], all_y[train], all_x[test], all_y[test]
        else:
            raise UsageError(
                f"{path} holds {sorted(arrays) or 'none of the arrays looked for'}",
                hint="save it with x and y, or with x_train, y_train, x_test and y_test",
            )
        if x.shape[1:] != test_x.shape[1:]:
            raise UsageError(
                f"{path}: training samples {tuple(x.shape[1:])}, test samples {tuple(test_x.shape[1:])}",
                hint="save both parts in one shape",
            )
        return Source(
            in_memory(x, y),
            in_memory(test_x, test_y),
            names_of(arrays, torch.cat((y, test_y)), path),
            vocabulary=self.options.vocabulary,
        )

    def _pair(self, arrays: Arrays, x_name: str, y_name: str, path: Path) -> tuple[Tensor, Tensor]:
        if self.options.vocabulary:
            x = tokens(arrays[x_name], path, self.options.vocabulary)
        else:
            x = samples(arrays[x_name], path, self.options.channels)
        y = labels(arrays[y_name], path, tuple(x.shape) if self.options.vocabulary else ())
        if len(x) != len(y):
            raise UsageError(
                f"{path}: {len(x)} samples in {x_name}, {len(y)} labels", hint="give each sample one label"
            )
        return x, y


def read_npz(path: Path, wanted: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """Those of the wanted arrays that the file holds. Pickled objects are refused: they could run any code.

    Raises:
        UsageError: no such file, or it is damaged.
    """
    try:
        file = np.load(path, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise UsageError(f"{path} holds a single array", hint="save it with np.savez(path, x=..., y=...)")
        with file:
            return {name: file[name] for name in wanted if name in file.files}
    except FileNotFoundError:
        raise UsageError(f"there is no file {path}", hint="set path, or EDGEBED_DATA to the folder above it") from None
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, MemoryError) as error:
        raise UsageError(f"{path} is no .npz file that can be read: {error}", hint="save it again") from None


def tokens(x: NDArray[Any], path: Path, vocabulary: int) -> Tensor:
    """x as (N, T) int64 below `vocabulary`."""
    if x.ndim != 2 or x.dtype.kind not in "ui" or not x.size or x.min() < 0 or x.max() >= vocabulary:
        raise UsageError(
            f"{path}: tokens of shape {x.shape} and type {x.dtype}",
            hint=f"save (N, T) of whole numbers from 0 to {vocabulary - 1}, or leave `vocabulary` away",
        )
    return torch.from_numpy(x.astype(np.int64))


def samples(x: NDArray[Any], path: Path, channels: str = "auto") -> Tensor:
    """x as (N, C, H, W) or (N, F), uint8 or float32; `channels` says where they are in an x of four sides."""
    if x.ndim not in (2, 3, 4) or x.dtype.kind not in "uif" or not x.size:
        raise UsageError(
            f"{path}: samples of shape {x.shape} and type {x.dtype}",
            hint="save (N, H, W), (N, C, H, W) or (N, F) of numbers",
        )
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and (
        channels == "last" or (channels == "auto" and x.shape[3] in (1, 3) and x.shape[1] not in (1, 3))
    ):
        x = x.transpose(0, 3, 1, 2)
    converted = np.ascontiguousarray(x if x.dtype == np.uint8 else x.astype(np.float32))
    if converted.dtype != np.uint8 and not np.isfinite(converted).all():
        raise UsageError(f"{path}: samples that are not finite", hint="leave out or mend samples with NaN or infinity")
    return torch.from_numpy(converted)


def labels(y: NDArray[Any], path: Path, per_token: tuple[int, ...] = ()) -> Tensor:
    """y as (N,) int64, or of the shape that it has with an answer for each token."""
    flat = y.reshape(-1) if y.ndim == 2 and y.shape[1] == 1 else y
    fits = flat.ndim == 1 or flat.shape == per_token
    if not fits or flat.dtype.kind not in "ui" or len(flat) < 2 or flat.min() < 0 or flat.max() > 1_000_000:
        raise UsageError(
            f"{path}: labels of shape {y.shape} and type {y.dtype}", hint="save whole numbers from 0, one per sample"
        )
    return torch.from_numpy(flat.astype(np.int64))


def names_of(arrays: Arrays, y: Tensor, path: Path) -> list[str]:
    """Class names: the file's `classes`, else the numbers."""
    needed = int(y.max()) + 1
    if "classes" not in arrays:
        return [str(number) for number in range(needed)]
    names = [str(name) for name in arrays["classes"].reshape(-1)]
    if len(names) < needed:
        raise UsageError(f"{path}: {len(names)} names in classes for {needed} classes", hint="name every class")
    return names
