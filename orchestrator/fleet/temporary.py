"""Folders whose owner can be told to be dead, also from another PID namespace or container: it holds a lock on a file
in them, which the kernel lets go of when the last process that has it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

PREFIXES = ("edgebed-data-", "edgebed-broker-", "edgebed-agents-", "edgebed-serve-", "edgebed-f")
LOCK = ".owner"


class OwnedFolder:
    """A temporary folder of this process; removed at the end of the block, or by `close`."""

    def __init__(self, prefix: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        self._lock = hold(self.path)

    def close(self) -> None:
        """Also a second time."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class Lock:
    """The sign of life of a folder's owner."""

    def __init__(self, file: int) -> None:
        self._file = file

    def close(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


def hold(folder: Path) -> Lock:
    """Make this process the owner of `folder` until the lock is closed. The file gets its name when it is locked: who
    looks earlier finds none, and leaves the folder alone."""
    hidden = folder / f"{LOCK}.part"
    file = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with contextlib.suppress(OSError):  # a file system without locks: then nobody can lock it, and it is left alone
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    hidden.rename(folder / LOCK)
    return Lock(file)


def is_abandoned(folder: Path) -> bool:
    """True only where the owner is certainly dead: the folder has a lock, nobody holds it, and it is ours to judge."""
    try:
        mine = os.geteuid() in (0, folder.lstat().st_uid)
        if not mine or folder.is_symlink():
            return False
        file = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
    finally:
        os.close(file)


def abandoned() -> Iterator[Path]:
    """The temporary folders that killed processes have left."""
    for path in sorted(Path(tempfile.gettempdir()).glob("edgebed-*")):
        if path.name.startswith(PREFIXES) and is_abandoned(path):
            yield path
