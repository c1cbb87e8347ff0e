"""Who owns what a fleet made, so that another process can tell whether the owner still lives.

Containers and networks carry a label that names a process (`Owner`). A folder holds a file that its owner keeps locked:
the kernel releases the lock when the last process that has it ends, so the owner can be told to be dead also from
another PID namespace or container (`OwnedFolder`).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import msgspec

OWNER, BROKER = "edgebed.owner", "edgebed.broker"
"""Labels of containers and networks. The value of the first is an `Owner`, as text."""

PROC = Path("/proc")
MACHINE_ID = Path("/etc/machine-id")
INITIAL_NAMESPACE = "4026531836"
"""The PID namespace of the host itself: the kernel gives it this number on every machine."""

PREFIXES = ("edgebed-data-", "edgebed-broker-", "edgebed-agents-", "edgebed-serve-", "edgebed-f")
LOCK = ".owner"


# ---- processes ----


class Owner(msgspec.Struct, frozen=True):
    """A process of one boot of one machine: process ids are used again, so its start time belongs to its name."""

    machine: str  # "" where the machine has no id
    boot: str
    pid_namespace: str
    pid: int
    started: int  # clock ticks since boot

    def __str__(self) -> str:
        return f"{self.machine}/{self.boot}/{self.pid_namespace}/{self.pid}/{self.started}"


def parse_owner(text: str) -> Owner | None:
    """None for anything that is not an owner's name."""
    parts = text.strip().split("/")
    if len(parts) != 5 or not all(part.isascii() and part.isdigit() and len(part) <= 20 for part in parts[3:]):
        return None
    return Owner(parts[0], parts[1], parts[2], int(parts[3]), int(parts[4]))


def this_process() -> Owner:
    return Owner(_machine(), _boot(), _pid_namespace(), os.getpid(), _started(os.getpid()) or 0)


def is_dead(owner: Owner | None) -> bool:
    """True only where that is certain. An owner that cannot be read (None) is taken to live.

    Another boot id means an earlier boot only on the same machine, since one engine may serve several machines. A
    process of another PID namespace may live where we cannot see it, unless that namespace has no process any more.
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


# ---- folders ----


class OwnedFolder:
    """A temporary folder of this process; removed at the end of the block, or by `close`."""

    def __init__(self, prefix: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        self._lock = hold(self.path)

    def close(self) -> None:
        """Remove the folder; a second call does nothing."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class Lock:
    """The lock on a folder, which shows that its owner lives."""

    def __init__(self, file: int) -> None:
        self._file = file

    def close(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


def hold(folder: Path) -> Lock:
    """Make this process the owner of `folder` until the lock is closed. The file gets its name once it is locked: a
    process that looks earlier finds no lock file, and leaves the folder alone."""
    hidden = folder / f"{LOCK}.part"
    file = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with contextlib.suppress(OSError):  # a file system without locks: then nobody can lock it, and it is left alone
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    hidden.rename(folder / LOCK)
    return Lock(file)


def is_abandoned(folder: Path) -> bool:
    """True only where the owner is certainly dead: the folder has a lock file that nobody holds locked, and the folder
    belongs to our user (or we are root)."""
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
