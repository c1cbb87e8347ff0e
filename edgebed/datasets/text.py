"""A plain text file: sequences of characters, each to be followed by the next one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import torch

from edgebed.datasets.base import DataSet, Share, Source, Subset, in_memory
from edgebed.errors import UsageError

MOST_BYTES = 64 << 20

MOST_CHARACTERS = 10_000
"""Different characters that a text may have."""


class Text(DataSet):
    name = "text"
    summary = "a plain text file, or Python's help; the next character is predicted"

    class Options(Subset, frozen=True, forbid_unknown_fields=True, kw_only=True):
        path: str = ""  # relative to the folder of data sets; "": the topics of Python's help, as it is installed
        length: Annotated[int, msgspec.Meta(ge=2, le=4096)] = 64  # characters of a sequence
        test_share: Share = 0.1  # of the text, from its end

    options: Options

    def open(self, root: Path, seed: int) -> Source:
        path, length = root / self.options.path, self.options.length
        text = _read(path) if self.options.path else _python_help()
        names, tokens = np.unique(list(text), return_inverse=True)
        count = max(0, len(tokens) - 1) // length
        held = max(1, round(count * self.options.test_share))
        if count < 2 or len(names) > MOST_CHARACTERS:
            raise UsageError(
                f"{path} has {len(tokens)} characters, {len(names)} different ones, in {count} sequences of {length}",
                hint=f"give a longer text, or a smaller length; at most {MOST_CHARACTERS} different characters",
            )
        whole = torch.from_numpy(tokens.astype(np.int64))
        x, y = (whole[first : first + count * length].view(count, length) for first in (0, 1))
        parts = slice(count - held), slice(count - held, count)
        train, test = (in_memory(x[rows].contiguous(), y[rows].contiguous()) for rows in parts)
        return Source(train, test, [repr(str(name))[1:-1] for name in names], vocabulary=len(names))


def _read(path: Path) -> str:
    try:
        if not path.is_file() or path.stat().st_size > MOST_BYTES:
            raise UsageError(f"{path} is no file of at most {MOST_BYTES >> 20} MiB", hint="give the path of a text")
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read as text: {error}", hint="save it as plain text in UTF-8") from None


def _python_help() -> str:
    """What `help()` says of the language, some 700 kB; another version of Python has another text."""
    from pydoc_data.topics import topics  # only where it is asked for: it takes memory

    return "\n".join(topics[name] for name in sorted(topics))
