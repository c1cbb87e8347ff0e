"""A user id of its own for every local agent. The ids have no entry in /etc/passwd, and no other program uses them."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from edgebed.errors import FleetError

BLOCK = 256
"""Number of ids per block. Every fleet takes whole blocks."""

HOST = (2_100_000_000, 256)
"""First id and number of blocks. The range lies above the ids of systemd's containers (to 1,879,048,191), useradd's
sub-users (600,100,000) and SSSD's domains (2,000,200,000), and below 2³¹."""

INSIDE = (32_768, 100)
"""The same for a user namespace that maps only 65,536 users, as in an unprivileged container. The range lies below
systemd's dynamic users (61,184)."""

UID_MAP = Path("/proc/self/uid_map")


class Users:
    """User ids for the devices of one fleet. A lock on each block reserves them until `close` or the end of this
    process, however it ends.

    Args:
        count: the number of ids.
        state: a folder that all orchestrators of this host share.

    Raises:
        FleetError: all ids are taken.
    """

    def __init__(self, count: int, state: Path) -> None:
        self._locks: list[int] = []
        self.numbers: list[int] = []
        folder = state / "users"
        folder.mkdir(parents=True, exist_ok=True)
        first, blocks = HOST if is_mapped(HOST[0], UID_MAP.read_text()) else INSIDE
        for block in range(blocks):
            if len(self.numbers) < count and self._take(folder / str(block)):
                start = first + block * BLOCK
                self.numbers += range(start, start + BLOCK)
        if len(self.numbers) < count:
            self.close()
            raise FleetError(
                f"{count} agents need one user id each, and all {blocks * BLOCK} ids are taken",
                hint="end another fleet of this host",
            )

    def _take(self, path: Path) -> bool:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            return False
        self._locks.append(file)
        return True

    def close(self) -> None:
        """Release the ids. May be called twice."""
        while self._locks:
            os.close(self._locks.pop())


def closed_to_others(paths: Iterable[str]) -> Path | None:
    """The first folder on the way to one of `paths` that other users may not enter."""
    for path in paths:
        way = Path(path).resolve()
        for folder in [*reversed(way.parents), way]:
            if folder.is_dir() and not folder.stat().st_mode & stat.S_IXOTH:
                return folder
    return None


def is_mapped(number: int, uid_map: str) -> bool:
    """Whether a user namespace maps the user `number`, according to its /proc/PID/uid_map."""
    rows = [[int(field) for field in line.split()] for line in uid_map.splitlines()]
    return any(inside <= number < inside + length for inside, _, length in rows)
