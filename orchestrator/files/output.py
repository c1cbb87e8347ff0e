"""Tries, before a fleet is started, that what a command will write can be written; and writes what must last."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from edgebed.errors import FileError

PROBE_BYTES = 1 << 20
"""A folder without room for so much holds no run: its records and its first checkpoint are larger."""


def try_folder(path: Path) -> None:
    """Make the folder, and see that a file can be kept in it. Raises FileError with place, cause and hint."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path, prefix=".edgebed-try-", buffering=0) as probe:
            _write_all(probe.fileno(), bytes(PROBE_BYTES))
            os.fsync(probe.fileno())
    except OSError as error:
        raise FileError.of(error, path) from None


def try_file(path: Path) -> None:
    """See that the file can be written to; what it holds stays, and none is left that was not there before."""
    try:
        new = not path.exists()
        with path.open("ab"):
            pass
        if new:
            path.unlink()
    except OSError as error:
        raise FileError.of(error, path) from None


def keep(path: Path, data: bytes) -> None:
    """Write a file so that it outlasts a loss of power, whole or not at all: aside, on the disk, then renamed.

    Raises:
        FileError: it cannot be written; the file of before is as it was.
    """
    part = write_aside(path, data)
    part.replace(path)
    sync_folder(path.parent)


def write_aside(path: Path, data: bytes) -> Path:
    """`data` in a file beside `path`, on the disk; returns it. Nothing is left of it where that fails."""
    part = path.with_suffix(".part")
    try:
        with part.open("wb", buffering=0) as file:
            _write_all(file.fileno(), data)
            os.fsync(file.fileno())
    except OSError as error:
        part.unlink(missing_ok=True)
        raise FileError.of(error, path) from None
    return part


def sync_folder(path: Path) -> None:
    """Have the names in a folder on the disk: a file that was renamed may else be gone after a loss of power."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _write_all(number: int, data: bytes) -> None:
    """A disk that is nearly full takes a part; the next write tells why."""
    view = memoryview(data)
    while view:
        view = view[os.write(number, view) :]
