"""What a forked agent does before it serves: it enters its namespaces and cgroups, then drops its privileges.

Linux system calls through ctypes, because Python 3.11 has no setns, unshare or mount.
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
    """Give this process its own namespaces; CLONE_NEWPID holds for its next child. Raises OSError."""
    _check(_libc.unshare(flags), f"unshare {flags:#x}")


def children_stay_here() -> None:
    """Undo `unshare(CLONE_NEWPID)`: the next child is in the PID namespace of this process. Raises OSError."""
    with open("/proc/self/ns/pid", "rb") as file:
        _check(_libc.setns(file.fileno(), CLONE_NEWPID), "setns of the own PID namespace")


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    """mount(2). Raises OSError with the target."""
    _check(_libc.mount(source.encode(), os.fsencode(target), kind.encode(), flags, data.encode()), f"mount {target}")


def unmount(target: str) -> None:
    """Remove a mount, even if it is in use. Raises OSError."""
    _check(_libc.umount2(os.fsencode(target), MNT_DETACH), f"umount {target}")


def pivot_root(new: str, old: str) -> None:
    """Make the mount `new` this process's root and put the old one at `old`. Raises OSError."""
    _check(_libc.pivot_root(os.fsencode(new), os.fsencode(old)), "pivot_root")


def join_cgroups(procs_files: list[str]) -> None:
    """Move this process into cgroups, by their cgroup.procs files. Raises OSError."""
    for name in procs_files:
        Path(name).write_text("0")  # 0 is the writing process: its id differs between PID namespaces


def die_with(parent: int) -> None:
    """This process is killed when its parent process `parent` ends."""
    die_with_parent()
    if os.getppid() != parent:  # it has ended already
        sys.exit(1)


def die_with_parent() -> None:
    """The same if the parent has no id here, as in a PID namespace. The caller must check that it is still alive."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def drop_privileges(uid: int) -> None:
    """Change from root to user and group `uid`, without capabilities and without a way back. Raises OSError."""
    for capability in range(64):
        _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)  # fails for numbers that the kernel does not know
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    drop_capabilities()
    _prctl(PR_SET_DUMPABLE, 1)  # otherwise /proc/self belongs to root from now on


def drop_capabilities() -> None:
    """Of this thread and what it starts: none is left, and no program gets one back, root's neither. Raises OSError."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    _check(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")  # inheritable capabilities, too
    _prctl(PR_SET_NO_NEW_PRIVS, 1)


def _prctl(option: int, value: int) -> None:
    _check(_libc.prctl(option, value, 0, 0, 0), f"prctl {option}")


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
