"""Identifies the owner of what a fleet made, so that another process can tell whether the owner is alive.

Containers and networks carry a label that names a process (`Owner`). A folder holds a file that its owner keeps locked:
the kernel releases the lock when the last process that has it ends. So anybody can tell a dead owner, even from another
container or PID namespace (`OwnedFolder`).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from orchestrator.files.shared_lock import try_lock

OWNER, BROKER = "edgebed.owner", "edgebed.broker"
"""Labels of containers and networks. The value of the first is an `Owner`, as text."""

PROC = Path("/proc")
MACHINE_ID = Path("/etc/machine-id")
INITIAL_NAMESPACE = "4026531836"
"""The PID namespace of the host itself. It has this number on every Linux machine."""

PREFIXES = ("edgebed-data-", "edgebed-broker-", "edgebed-agents-", "edgebed-serve-", "edgebed-f")
LOCK = ".owner"


# ---- processes ----


class Owner(msgspec.Struct, frozen=True):
    """A process in one boot of one machine. Includes the start time, because process ids are reused."""

    machine: str  # "" if the machine has no id
    boot: str
    pid_namespace: str
    pid: int
    started: int  # clock ticks since boot

    def __str__(self) -> str:
        return f"{self.machine}/{self.boot}/{self.pid_namespace}/{self.pid}/{self.started}"


def parse_owner(text: str) -> Owner | None:
    """The owner that `text` names; None if it names none."""
    parts = text.strip().split("/")
    if len(parts) != 5 or not all(part.isascii() and part.isdigit() and len(part) <= 20 for part in parts[3:]):
        return None
    return Owner(parts[0], parts[1], parts[2], int(parts[3]), int(parts[4]))


def this_process() -> Owner:
    return Owner(_machine(), _boot(), _pid_namespace(), os.getpid(), _started(os.getpid()) or 0)


def is_dead(owner: Owner | None) -> bool:
    """True only if the owner is certainly dead. False for an owner that cannot be read (None).

    A different boot id proves an earlier boot only on the same machine, because one engine may serve several machines.
    A process of another PID namespace may be alive without being visible here, unless that namespace is empty.
    """
    if owner is None:
        return False
    if owner.boot != _boot():
        return owner.machine != "" and owner.machine == _machine()
    if owner.pid_namespace != _pid_namespace():
        return _is_empty(owner.pid_namespace)
    return _started(owner.pid) != owner.started and not _is_hidden(owner.pid)


def is_orphan(labels: Mapping[str, str] | None) -> bool:
    """Whether the owner that the labels of a container, network, volume or service name is certainly dead."""
    return is_dead(parse_owner((labels or {}).get(OWNER, "")))


def _machine() -> str:
    """Identifies a machine by its id and its name, because copies of one disk image often share the id."""
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
    """Whether a PID namespace has no process. Only root on the host itself can tell; otherwise False."""
    if _pid_namespace() != INITIAL_NAMESPACE or os.geteuid() != 0:
        return False
    for process in PROC.glob("[0-9]*"):
        try:
            if os.readlink(process / "ns/pid").strip("pid:[]") == namespace:
                return False
        except (FileNotFoundError, ProcessLookupError):  # the process has ended
            continue
        except OSError:
            return False
    return True


def _started(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot; None if there is none or it is a zombie."""
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _is_hidden(pid: int) -> bool:
    """Whether another user's process has this id but /proc hides it (mounted with hidepid)."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return not (PROC / str(pid)).exists()
    except OSError:
        return False
    return False


# ---- folders ----


class OwnedFolder:
    """A temporary folder of this process. The end of the `with` block, or `close`, removes it."""

    def __init__(self, prefix: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        self._lock = hold(self.path)

    def close(self) -> None:
        """Remove the folder; a second call does nothing."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.close()


class Lock:
    """The lock that shows that a folder's owner is alive."""

    def __init__(self, file: int) -> None:
        self._file = file

    def fileno(self) -> int:
        """The locked file's descriptor; -1 when closed."""
        return self._file

    def close(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


def hold(folder: Path) -> Lock:
    """Make this process the owner of `folder` until the lock is closed. The lock file gets its name after it is locked,
    so that a process that looks earlier finds no lock and leaves the folder alone."""
    hidden = folder / f"{LOCK}.part"
    file = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with contextlib.suppress(OSError):  # without locks in this file system, nobody can judge the folder: it is kept
        try_lock(file)
    hidden.rename(folder / LOCK)
    return Lock(file)


def is_abandoned(folder: Path) -> bool:
    """True only if the owner is certainly dead: the folder has a lock file that nobody holds, and it belongs to our
    user (or we are root)."""
    try:
        mine = os.geteuid() in (0, folder.lstat().st_uid)
        return mine and not folder.is_symlink() and not is_held(folder / LOCK)
    except OSError:
        return False


def abandoned() -> Iterator[Path]:
    """The temporary folders that killed processes left."""
    for path in sorted(Path(tempfile.gettempdir()).glob("edgebed-*")):
        if path.name.startswith(PREFIXES) and is_abandoned(path):
            yield path


def is_held(path: Path) -> bool:
    """Whether a living process holds this file's lock. Raises OSError where the file cannot be opened or
    locked."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        return not try_lock(file, fcntl.LOCK_SH)
    finally:
        os.close(file)
