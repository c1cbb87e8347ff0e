"""Reads files that others may have put there: no links, no pipes, not without end."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def read_plain(path: Path, most: int | None = None) -> bytes:
    """The contents of a plain file. Raises OSError for a link, a pipe, a folder, and a file of more than `most`
    bytes."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or (most is not None and status.st_size > most):
            raise OSError(0, "no plain file, or too large", str(path))
        return file.read()
