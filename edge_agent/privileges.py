"""What a forked agent does to itself before it serves: enter its namespace and cgroup, then give its rights up.

Plain Linux system calls through ctypes, for Python 3.11 has no setns.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

NOBODY = 65534
CLONE_NEWNET = 0x40000000
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_KEEPCAPS, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 4, 8, 24, 38
CAP_DAC_READ_SEARCH = 2
CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]


def enter_netns(path: str) -> None:
    """Move this (single-threaded) process into the network namespace at `path`. Raises OSError."""
    with open(path, "rb") as file:
        _check(_libc.setns(file.fileno(), CLONE_NEWNET), f"setns {path}")


def join_cgroups(procs_files: list[str]) -> None:
    """Move this process into cgroups, by their cgroup.procs files. Raises OSError."""
    for name in procs_files:
        Path(name).write_text(str(os.getpid()))


def die_with(parent: int) -> None:
    """Be killed when the process `parent`, whose child this is, ends."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before we could ask
        sys.exit(1)


def drop_privileges() -> None:
    """From root to nobody, without the right to change networks, cgroups or files. One capability stays: reading
    files, for shard and program may lie in root's folders. Does nothing for a process that is not root."""
    if os.geteuid() != 0:
        return
    _prctl(PR_SET_KEEPCAPS, 1)
    for capability in range(64):
        _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)  # fails past the kernel's last one
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    _keep_only(CAP_DAC_READ_SEARCH)
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    _prctl(PR_SET_DUMPABLE, 1)  # else /proc/self belongs to root from here on


def _keep_only(capability: int) -> None:
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    mask = 1 << capability
    data = (ctypes.c_uint32 * 6)(mask, mask, 0, 0, 0, 0)  # effective, permitted, inheritable; low word, high word
    _check(_libc.capset(header, data), "capset")


def _prctl(option: int, value: int) -> None:
    _check(_libc.prctl(option, value, 0, 0, 0), f"prctl {option}")


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
