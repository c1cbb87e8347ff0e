"""A user of its own for every local agent: numbers without an entry in /etc/passwd that no other program hands out."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from edgebed.errors import FleetError

BLOCK = 256
"""Fleets take numbers in blocks of so many."""

HOST = (2_100_000_000, 256)
"""First number and number of blocks: above what systemd gives to containers (to 1,879,048,191), useradd to sub-users
(600,100,000) and SSSD to domains (2,000,200,000), below 2³¹."""

INSIDE = (32_768, 100)
"""The same in a user namespace that maps only 65,536 users, as in a container without privileges: below systemd's
dynamic users (61,184)."""

UID_MAP = Path("/proc/self/uid_map")


class Users:
    """Numbers for the devices of one fleet. Nobody else gets them before `close`, or the end of this process, whatever
    ends it: a lock holds each block.

    Args:
        count: how many.
        state: a folder that all orchestrators of this host share.

    Raises:
        FleetError: all are taken.
    """

    def __init__(self, count: int, state: Path) -> None:
        self._locks: list[int] = []
        self.numbers: list[int] = []
        folder = state / "users"
        folder.mkdir(parents=True, exist_ok=True)
        first, blocks = HOST if _is_mapped(HOST[0], UID_MAP.read_text()) else INSIDE
        for block in range(blocks):
            if len(self.numbers) < count and self._take(folder / str(block)):
                start = first + block * BLOCK
                self.numbers += range(start, start + BLOCK)
        if len(self.numbers) < count:
            self.close()
            raise FleetError(
                f"{count} agents need a user each, and the {blocks * BLOCK} numbers for them are taken",
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
        """Also a second time."""
        while self._locks:
            os.close(self._locks.pop())


def closed_to_others(paths: Iterable[str]) -> Path | None:
    """The first folder on the way to one of `paths` that only its owner or group may enter."""
    for path in paths:
        way = Path(path).resolve()
        for folder in [*reversed(way.parents), way]:
            if folder.is_dir() and not folder.stat().st_mode & stat.S_IXOTH:
                return folder
    return None


def _is_mapped(number: int, uid_map: str) -> bool:
    """Whether a user namespace knows the user `number`, from its /proc/PID/uid_map."""
    rows = [[int(field) for field in line.split()] for line in uid_map.splitlines()]
    return any(inside <= number < inside + length for inside, _, length in rows)
