"""Rows of a table of one's own: a CSV or Parquet file, one column of which is predicted from the others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from edgebed.datasets.base import DataSet, Share, Source, Subset, hold_out, in_memory
from edgebed.errors import UsageError

MOST_VALUES = 100
"""Different values that a column of texts may have: each becomes a column of 0 and 1."""


class Table(DataSet):
    name = "table"
    summary = "rows of a CSV or Parquet file"

    class Options(Subset, frozen=True, forbid_unknown_fields=True, kw_only=True):
        path: str  # relative to the folder of data sets
        target: str  # the column to predict
        test_share: Share = 0.2

    options: Options

    def open(self, root: Path, seed: int) -> Source:
        import pandas as pd  # takes half a second

        path, target = root / self.options.path, self.options.target
        try:
            frame = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
        except ImportError as error:
            raise UsageError(str(error), hint="install edgebed[export], or save the table as .csv") from None
        except (OSError, ValueError) as error:  # pandas' own errors are ValueErrors
            raise UsageError(
                f"{path} cannot be read as a table: {error}", hint="give a .csv or .parquet file"
            ) from None
        if target not in frame or len(frame.columns) < 2:
            raise UsageError(
                f"{path} has the columns {', '.join(map(str, frame.columns))}", hint="name one of several in `target`"
            )
        if frame.isna().any(axis=None):
            lacking = [str(name) for name in frame.columns[frame.isna().any()]]
            raise UsageError(f"{path} lacks values in {', '.join(lacking)}", hint="fill them, or leave these rows out")
        names, y = np.unique(frame.pop(target).astype(str), return_inverse=True)
        texts = list(frame.select_dtypes(exclude=["number", "bool"]).columns)
        if many := [str(name) for name in texts if frame[name].nunique() > MOST_VALUES]:
            raise UsageError(
                f"{path}: {', '.join(many)}: more than {MOST_VALUES} different texts", hint="leave these columns out"
            )
        x = torch.from_numpy(pd.get_dummies(frame, columns=texts).to_numpy(np.float32))
        labels = torch.from_numpy(y.astype(np.int64))
        train, test = hold_out(torch.arange(len(x)), self.options.test_share, seed)
        return Source(in_memory(x[train], labels[train]), in_memory(x[test], labels[test]), [str(n) for n in names])
