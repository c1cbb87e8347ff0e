"""What a forked agent does to itself before it serves: enter its namespace and cgroup, then give its rights up.

Plain Linux system calls through ctypes, for Python 3.11 has no setns, unshare or mount.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWPID, CLONE_NEWNET = 0x00020000, 0x08000000, 0x20000000, 0x40000000
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 4, 24, 38
CAPABILITY_VERSION_3 = 0x20080522
MNT_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
_libc.mount.argtypes = [*[ctypes.c_char_p] * 3, ctypes.c_ulong, ctypes.c_char_p]


def enter_netns(path: str) -> None:
    """Move this (single-threaded) process into the network namespace at `path`. Raises OSError."""
    with open(path, "rb") as file:
        _check(_libc.setns(file.fileno(), CLONE_NEWNET), f"setns {path}")


def unshare(flags: int) -> None:
    """Namespaces of this process's own; with CLONE_NEWPID of its next child's. Raises OSError."""
    _check(_libc.unshare(flags), f"unshare {flags:#x}")


def children_stay_here() -> None:
    """Take `unshare(CLONE_NEWPID)` back: the next child is in this process's own PID namespace. Raises OSError."""
    with open("/proc/self/ns/pid", "rb") as file:
        _check(_libc.setns(file.fileno(), CLONE_NEWPID), "setns of the own PID namespace")


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    """mount(2). Raises OSError naming the target."""
    _check(_libc.mount(source.encode(), os.fsencode(target), kind.encode(), flags, data.encode()), f"mount {target}")


def unmount(target: str) -> None:
    """Take a mount away, though somebody may still use it. Raises OSError."""
    _check(_libc.umount2(os.fsencode(target), MNT_DETACH), f"umount {target}")


def pivot_root(new: str, old: str) -> None:
    """Make the mount `new` this process's root and put the old one at `old`. Raises OSError."""
    _check(_libc.pivot_root(os.fsencode(new), os.fsencode(old)), "pivot_root")


def join_cgroups(procs_files: list[str]) -> None:
    """Move this process into cgroups, by their cgroup.procs files. Raises OSError."""
    for name in procs_files:
        Path(name).write_text("0")  # whoever writes: its number in a PID namespace may be another


def die_with(parent: int) -> None:
    """Be killed when the process `parent`, whose child this is, ends."""
    die_with_parent()
    if os.getppid() != parent:  # it ended before we could ask
        sys.exit(1)


def die_with_parent() -> None:
    """The same where the parent has no number here, as in a PID namespace: the caller looks whether it still lives."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def drop_privileges(uid: int) -> None:
    """From root to a user and group `uid` without any capability, for good. Raises OSError."""
    for capability in range(64):
        _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)  # fails past the kernel's last one
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    _check(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")  # what could be inherited goes, too
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    _prctl(PR_SET_DUMPABLE, 1)  # else /proc/self belongs to root from here on


def _prctl(option: int, value: int) -> None:
    _check(_libc.prctl(option, value, 0, 0, 0), f"prctl {option}")


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
