"""Checks, before a fleet is started, that a command can write its outputs; and writes files that survive power loss."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from edgebed.errors import FileError

PROBE_BYTES = 1 << 20
"""Least free space of a folder for runs. The records and the first checkpoint of a run need more than this."""


def try_folder(path: Path) -> None:
    """Make the folder, and check that a file can be stored in it. Raises FileError with folder, cause and hint."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path, prefix=".edgebed-try-", buffering=0) as probe:
            _write_all(probe.fileno(), bytes(PROBE_BYTES))
            os.fsync(probe.fileno())
    except OSError as error:
        raise FileError.of(error, path) from None


def try_file(path: Path) -> None:
    """Check that the file can be written. An existing file keeps its content; a new file is removed again."""
    try:
        new = not path.exists()
        with path.open("ab"):
            pass
        if new:
            path.unlink()
    except OSError as error:
        raise FileError.of(error, path) from None


def keep(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Write a file atomically: to a temporary file, synced to disk, then renamed. It survives a loss of power. `mode`:
    of the file, less what the process's umask takes away. Raises FileError: it cannot be written; the old file is
    unchanged."""
    part = write_aside(path, data, mode)
    part.replace(path)
    sync_folder(path.parent)


def replace(path: Path, data: bytes) -> None:
    """Write to another file and rename that, so that a reader never sees half a file. It is not synced to disk. Raises
    OSError."""
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_bytes(data)
    part.replace(path)


def write_aside(path: Path, data: bytes, mode: int = 0o666) -> Path:
    """Write `data` to a temporary file beside `path`, synced to disk, and return its path. Removes it on failure."""
    part = path.with_suffix(".part")
    try:
        part.unlink(missing_ok=True)  # it may have another mode
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb", buffering=0) as file:
            _write_all(file.fileno(), data)
            os.fsync(file.fileno())
    except OSError as error:
        part.unlink(missing_ok=True)
        raise FileError.of(error, path) from None
    return part


def sync_folder(path: Path) -> None:
    """Sync the names in a folder to disk. Otherwise a renamed file may be lost with the power."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _write_all(number: int, data: bytes) -> None:
    """Write until everything is written. A nearly full disk accepts a part; the next write then raises."""
    view = memoryview(data)
    while view:
        view = view[os.write(number, view) :]
