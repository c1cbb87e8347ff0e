"""Processes of this host: what this one may do for local agents, what one has used; stops them, and lets them go on."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from edgebed.errors import FleetError, LimitError
from edgebed.limits.cgroups import version_of
from edgebed.limits.shell import missing_tools

PATIENCE_S = 5.0
"""A process in a system call that cannot be interrupted stops only after it."""


def set_stopped(pids: Sequence[int], stopped: bool) -> str:
    """Stop processes, or let them go on. Returns what /proc then says of them, in words. Raises FleetError: one did not
    obey in time, or there is none."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP if stopped else signal.SIGCONT)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        states = [state for pid in pids if (state := _state(pid))]
        if states and all((state in "Tt") == stopped for state in states):
            return f"{len(states)} processes {'stopped' if stopped else 'running'}"
        if time.monotonic() > deadline:
            wanted = "be stopped" if stopped else "go on"
            raise FleetError(f"processes {list(pids)} should {wanted}, their states are {states}", hint="see ps")
        time.sleep(0.001)


def _state(pid: int) -> str:
    """The letter of a process's state; "" if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def use_of(pid: int | None) -> tuple[float, float]:
    """CPU seconds and MiB of a process; zeros if there is none."""
    try:
        process = psutil.Process(pid) if pid else None
        if process is None:
            return 0.0, 0.0
        times = process.cpu_times()
        return times.user + times.system, process.memory_info().rss / 2**20
    except psutil.Error:
        return 0.0, 0.0


CAP_SYS_ADMIN = 21


def kernel_obstacle() -> str:
    """Why this process cannot limit other processes through the kernel; empty if it can."""
    if os.geteuid() != 0:
        return "not root"
    if missing := missing_tools("ip", "tc", "nsenter"):
        return f"no {', '.join(missing)} (apt-get install iproute2 util-linux)"
    try:
        version_of()
    except LimitError as error:
        return str(error)
    return ""


def may_mount() -> bool:
    """Whether this process may make mounts and PID namespaces. Root in a container without CAP_SYS_ADMIN may not."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return bool(int(fields["CapEff"], 16) & 1 << CAP_SYS_ADMIN)
