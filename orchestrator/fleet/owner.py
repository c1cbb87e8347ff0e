"""Who owns what a fleet made: a process, named so that another one can tell whether it still lives."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

PROC = Path("/proc")


class Owner(msgspec.Struct, frozen=True):
    """A process of one boot of one machine: process ids are used again, so its start time belongs to its name."""

    boot: str
    pid_namespace: str
    pid: int
    started: int  # clock ticks since boot

    def __str__(self) -> str:
        return f"{self.boot}/{self.pid_namespace}/{self.pid}/{self.started}"


def parse(text: str) -> Owner | None:
    """None for anything that is not an owner's name."""
    parts = text.strip().split("/")
    if len(parts) != 4 or not (parts[2].isdigit() and parts[3].isdigit()):
        return None
    return Owner(parts[0], parts[1], int(parts[2]), int(parts[3]))


def this_process() -> Owner:
    return Owner(_boot(), _pid_namespace(), os.getpid(), _started(os.getpid()) or 0)


def is_dead(owner: Owner | None) -> bool:
    """True only where that is certain. A process of another pid namespace may live where we cannot see it, and what
    bears no readable name is left alone."""
    if owner is None:
        return False
    if owner.boot != _boot():
        return True
    return owner.pid_namespace == _pid_namespace() and _started(owner.pid) != owner.started


def _boot() -> str:
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def _pid_namespace() -> str:
    return os.readlink(PROC / "self/ns/pid").strip("pid:[]")


def _started(pid: int) -> int | None:
    """Start time of a process; None where there is none, or only its exit status is left."""
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])
