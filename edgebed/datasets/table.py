"""Rows of a table of one's own: a CSV or Parquet file, one column of which is predicted from the others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from edgebed.datasets.base import DataSet, Share, Source, Subset, hold_out, in_memory
from edgebed.errors import UsageError
from edgebed.typed import nearest

if TYPE_CHECKING:
    import pandas as pd

MOST_VALUES = 100
"""Different values that a column of texts may have: each becomes a column of 0 and 1."""

MOST_COLUMNS = 100_000


class Table(DataSet):
    name = "table"
    summary = "rows of a CSV or Parquet file"

    class Options(Subset, frozen=True, forbid_unknown_fields=True, kw_only=True):
        path: str  # relative to the folder of data sets
        target: str  # the column to predict
        test_share: Share = 0.2

    options: Options

    def open(self, root: Path, seed: int) -> Source:
        path = root / self.options.path
        frame = _read(path).rename(columns=str)
        y, names = take_answers(frame, self.options.target, path)
        x = as_numbers(frame, path)
        train, test = hold_out(torch.arange(len(x)), self.options.test_share, seed)
        return Source(in_memory(x[train], y[train]), in_memory(x[test], y[test]), names)


def as_numbers(frame: pd.DataFrame, path: Path | str) -> Tensor:
    """x (N, F) float32: the columns of numbers, then one of 0 and 1 for each text of the others. Raises UsageError for
    too many columns, and numbers beyond 32 bits."""
    import pandas as pd  # takes half a second

    texts = list(frame.select_dtypes(exclude=["number", "bool"]).columns)
    frame[texts] = frame[texts].astype(str)
    counts = frame[texts].nunique()
    if many := [name for name in texts if counts[name] > MOST_VALUES]:
        raise UsageError(
            f"{path}: {_some(many)}: more than {MOST_VALUES} different texts",
            hint="save the table without these columns",
        )
    _refuse_wide(path, len(frame.columns) - len(texts) + int(counts.sum()))
    x = torch.from_numpy(pd.get_dummies(frame, columns=texts).to_numpy(np.float32, copy=True))
    if not torch.isfinite(x).all():
        raise UsageError(f"{path} holds numbers beyond 32 bits", hint="leave out or mend these rows")
    return x


def _read(path: Path) -> pd.DataFrame:
    """Raises UsageError."""
    import pandas as pd

    if not path.is_file():
        raise UsageError(f"{path} is no file", hint="give a .csv or .parquet file")
    try:
        if path.suffix == ".parquet":
            return pd.read_parquet(path)
        _refuse_wide(path, len(pd.read_csv(path, nrows=0).columns))  # before a million columns are read
        return pd.read_csv(path)
    except ImportError as error:
        raise UsageError(str(error), hint="install edgebed[export], or save the table as .csv") from None
    except (OSError, ValueError) as error:  # pandas' own errors are ValueErrors
        hint = "save it as UTF-8" if isinstance(error, UnicodeDecodeError) else "give a .csv or .parquet file"
        raise UsageError(f"{path} cannot be read as a table: {str(error).strip()}", hint=hint) from None


def _refuse_wide(path: Path | str, columns: int) -> None:
    if columns > MOST_COLUMNS:
        raise UsageError(
            f"{path} has {columns} columns, texts as one for each value; {MOST_COLUMNS} are allowed",
            hint="save it with fewer columns",
        )


def _some(names: list[str]) -> str:
    """The first names of columns."""
    return ", ".join(names[:20]) + (", …" if len(names) > 20 else "")


def take_answers(frame: pd.DataFrame, target: str, path: Path | str) -> tuple[Tensor, list[str]]:
    """Takes the target column out of the table: y (N,) int64, and the names of its classes. Raises UsageError where
    there is none, a value of the table is missing or infinite, or the column holds no classes."""
    columns = list(frame.columns)
    if target not in columns or len(columns) < 2:
        only = columns[0] if len(columns) == 1 else ""
        other = next((mark for mark in ";\t|" if mark in only), None)
        raise UsageError(
            f"{path} has no column {target!r} beside others{nearest(target, columns)}",
            hint=f"separate the columns by ',', not {other!r}" if other else f"its columns: {_some(columns)}",
        )
    empty = frame.isin([np.inf, -np.inf]) | frame.isna()
    if empty.any(axis=None):
        rows = np.flatnonzero(empty.any(axis=1))
        raise UsageError(
            f"{path}: {len(rows)} of {len(frame)} rows lack values, or have infinite ones, in "
            f"{_some(list(frame.columns[empty.any()]))}; the first is row {rows[0] + 1} below the header",
            hint="fill them, or leave these rows out",
        )
    answers = frame.pop(target)
    if answers.dtype.kind == "f" and (answers % 1 != 0).any():
        raise UsageError(
            f"{path}: {target} holds numbers with fractions, and only classes can be learned",
            hint="name another column in `target`, or save ranges of it as classes",
        )
    names, labels = np.unique(answers.astype(str), return_inverse=True)
    return torch.from_numpy(labels.astype(np.int64)), [str(name) for name in names]
