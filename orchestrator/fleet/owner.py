"""Who owns what a fleet made: a process, named so that another one can tell whether it still lives."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path

import msgspec

OWNER, BROKER = "edgebed.owner", "edgebed.broker"
"""Labels of containers and networks; the first has an `Owner` as its value."""

PROC = Path("/proc")
MACHINE_ID = Path("/etc/machine-id")
INITIAL_NAMESPACE = "4026531836"
"""The PID namespace of the host itself: the kernel gives it this number on every machine."""


class Owner(msgspec.Struct, frozen=True):
    """A process of one boot of one machine: process ids are used again, so its start time belongs to its name."""

    machine: str  # "" where the machine has no id
    boot: str
    pid_namespace: str
    pid: int
    started: int  # clock ticks since boot

    def __str__(self) -> str:
        return f"{self.machine}/{self.boot}/{self.pid_namespace}/{self.pid}/{self.started}"


def parse(text: str) -> Owner | None:
    """None for anything that is not an owner's name."""
    parts = text.strip().split("/")
    if len(parts) != 5 or not all(part.isascii() and part.isdigit() and len(part) <= 20 for part in parts[3:]):
        return None
    return Owner(parts[0], parts[1], parts[2], int(parts[3]), int(parts[4]))


def this_process() -> Owner:
    return Owner(_machine(), _boot(), _pid_namespace(), os.getpid(), _started(os.getpid()) or 0)


def is_dead(owner: Owner | None) -> bool:
    """True only where that is certain; what bears no readable name is left alone.

    Another boot id means an earlier boot only on the same machine: one engine may serve several. A process of another
    PID namespace may live where we cannot see it, unless no process is in that namespace any more.
    """
    if owner is None:
        return False
    if owner.boot != _boot():
        return owner.machine != "" and owner.machine == _machine()
    if owner.pid_namespace != _pid_namespace():
        return _is_empty(owner.pid_namespace)
    return _started(owner.pid) != owner.started and not _is_hidden(owner.pid)


def _machine() -> str:
    """A machine by its id and name: copies of one disk image often share the id."""
    try:
        id_ = MACHINE_ID.read_text().strip()
    except OSError:
        return ""
    return hashlib.sha256(f"{id_}\n{socket.gethostname()}".encode()).hexdigest()[:16] if id_ else ""


def _boot() -> str:
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def _pid_namespace() -> str:
    return os.readlink(PROC / "self/ns/pid").strip("pid:[]")


def _is_empty(namespace: str) -> bool:
    """No process of this kernel is in a PID namespace. Only root of the host itself can say so."""
    if _pid_namespace() != INITIAL_NAMESPACE or os.geteuid() != 0:
        return False
    for process in PROC.glob("[0-9]*"):
        try:
            if os.readlink(process / "ns/pid").strip("pid:[]") == namespace:
                return False
        except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            continue
        except OSError:
            return False
    return True


def _started(pid: int) -> int | None:
    """Start time of a process; None where there is none, or only its exit status is left."""
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _is_hidden(pid: int) -> bool:
    """There is such a process, of another user, and /proc does not show it (mounted with hidepid)."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return not (PROC / str(pid)).exists()
    except OSError:
        return False
    return False
