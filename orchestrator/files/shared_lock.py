"""Locks that processes of this host share. The kernel frees a lock when its holder ends, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from edgebed.errors import FleetError

TEMPORARY = Path("/tmp")
"""Holds files that any user may lock. Not TMPDIR, which may differ between processes."""


@contextlib.contextmanager
def shared_lock(
    path: Path, limit_s: float, go_on: Callable[[], None] = lambda: None, kind: int = fcntl.LOCK_EX
) -> Iterator[None]:
    """Hold the lock of a file in TEMPORARY, which is made if it is missing. Arguments and errors as in
    `lock_in_time`."""
    with opened(path) as file:
        lock_in_time(file, path, limit_s, go_on, kind)
        yield


@contextlib.contextmanager
def opened(path: Path) -> Iterator[int]:
    """The file that `open_lock` opens, until the block ends."""
    file = open_lock(path)
    try:
        yield file
    finally:
        os.close(file)


def lock_in_time(
    file: int, path: Path, limit_s: float, go_on: Callable[[], None] = lambda: None, kind: int = fcntl.LOCK_EX
) -> None:
    """Lock an open file, for this process alone unless `kind` is LOCK_SH.

    Args:
        path: of the file, for messages.
        go_on: called while it waits; may raise.

    Raises:
        FleetError: another process has held it for `limit_s` seconds.
    """
    deadline = time.monotonic() + limit_s
    while not try_lock(file, kind):
        go_on()
        if time.monotonic() > deadline:
            raise FleetError(
                f"another process has held {path} for {limit_s:.0f} s{_holders(file)}",
                hint=f"see who: fuser -v {path}",
            )
        time.sleep(0.01)


def try_lock(file: int | IO[Any], kind: int = fcntl.LOCK_EX) -> bool:
    """Lock an open file, or return False where another holds it. Raises OSError where it cannot be locked."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holders(file: int) -> str:
    """The processes that hold the lock of an open file, as far as /proc/locks tells."""
    inode, pids = os.fstat(file).st_ino, set[str]()
    with contextlib.suppress(OSError):
        rows = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        pids = {row[4] for row in rows if len(row) == 8 and row[5].endswith(f":{inode}")}
    return f" (process {', '.join(sorted(pids))})" if pids else ""


def open_lock(path: Path) -> int:
    """A file of any user that can be locked: opened to read, because the kernel forbids to open another user's file in
    /tmp with O_CREAT (fs.protected_regular). Raises FleetError for what is no file: a FIFO, which anybody may have put
    there, is opened without waiting for its other end."""
    for flags in (os.O_RDONLY, os.O_RDWR | os.O_CREAT | os.O_EXCL, os.O_RDONLY):
        try:
            file = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        except (FileNotFoundError, FileExistsError):
            continue
        except OSError as error:
            raise FleetError(f"{path} cannot be opened: {error.strerror}", hint=f"chmod 644 {path}") from None
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            os.close(file)
            raise FleetError(f"{path} is no file of its own: somebody put it there", hint=f"see whose: ls -l {path}")
        if status.st_uid == os.geteuid():
            os.fchmod(file, 0o644)
        return file
    raise FleetError(f"{path} cannot be made", hint=f"touch {path}")
