"""A rival: a busy process inside a device's quota, which takes CPU time from its agent."""

from __future__ import annotations

import subprocess
import sys

from edgebed.limits.cgroups import Cgroup, join

LOOP = """
import os, sys, time
share, parent = float(sys.argv[1]), os.getppid()
while os.getppid() == parent:
    end, busy = time.monotonic() + 0.05, time.thread_time() + 0.05 * share
    while time.thread_time() < busy:
        pass
    time.sleep(max(0.0, end - time.monotonic()))
"""
"""Wants `share` of a CPU; ends with the process that started it. What the quota denies it is not made up for."""


def shares(cpus: float) -> list[float]:
    """How many CPUs each of the processes wants that together want so many: one at most each."""
    whole = int(cpus)
    return [1.0] * whole + ([cpus - whole] if cpus > whole else [])


class Rivals:
    """The rivals of one device, as processes of this host in the device's cgroup."""

    def __init__(self, cgroup: Cgroup) -> None:
        self._cgroup = cgroup
        self._running: list[subprocess.Popen[bytes]] = []

    def want(self, cpus: float) -> str:
        """Replace the rivals by ones that want so many CPUs; 0: none. Returns what then is in the cgroup, in words.
        Raises LimitError: the cgroup refuses them."""
        self.end()
        for share in shares(cpus):
            argv = [sys.executable, "-I", "-S", "-c", LOOP, str(share)]
            self._running.append(subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True))
            join(self._cgroup, self._running[-1].pid)
        there = set(self._cgroup.pids())
        pids = [str(rival.pid) for rival in self._running if rival.pid in there]
        return f"busy processes in its cgroup: {', '.join(pids) or 'none'}"

    def end(self) -> None:
        for rival in self._running:
            rival.kill()
            rival.wait()
        self._running = []
