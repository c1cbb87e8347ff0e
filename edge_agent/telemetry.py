"""What an agent measures of itself: host facts, CPU time, throttling, delay and memory."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch

from edgebed.device.phases import Usage
from edgebed.wire.fork_protocol import HOST_PID
from edgebed.wire.protocol import PROTOCOL


def host_facts() -> dict[str, str]:
    """Versions and machine, for the records."""
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "protocol": str(PROTOCOL),
        "machine": platform.machine(),
        "kernel": platform.release(),
        "system": platform.system(),
        "hostname": platform.node(),
        "pid": os.environ.get(HOST_PID, str(os.getpid())),
    }


RECENT_NS = 20_000_000


class Throttling:
    """The counters of the agent's own cgroup, read through one open file."""

    def __init__(self, root: Path = Path("/")) -> None:
        path = _cpu_stat(root)
        self._file = None if path is None else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._at, self._last = -2 * RECENT_NS, (0, 0)

    @property
    def visible(self) -> bool:
        return self._file is not None

    def read(self) -> tuple[int, int]:
        """Nanoseconds for which, and periods in which, the quota stopped this cgroup since it was made."""
        return (0, 0) if self._file is None else parse_cpu_stat(os.pread(self._file, 1024, 0))

    def recent(self) -> tuple[int, int]:
        """The same, at most RECENT_NS old. Reading is the slowest part of a change of phase, and with small batches
        phases change every few milliseconds. A period of a quota usually has 100 ms or more."""
        now = time.monotonic_ns()
        if now - self._at > RECENT_NS:
            self._at, self._last = now, self.read()
        return self._last


def parse_cpu_stat(text: bytes) -> tuple[int, int]:
    """(throttled ns, throttled periods) of a cpu.stat, cgroup v1 or v2."""
    fields = dict(line.split() for line in text.splitlines() if line.count(b" ") == 1)
    ns = int(fields[b"throttled_usec"]) * 1000 if b"throttled_usec" in fields else int(fields.get(b"throttled_time", 0))
    return ns, int(fields.get(b"nr_throttled", 0))


def _cpu_stat(root: Path) -> Path | None:
    """The file with the counters of this process's cgroup: below its path in /proc/self/cgroup or, in a container whose
    hierarchy is mounted at its own group, at the top."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "" or "cpu" in controllers.split(","):
            mount = root / "sys/fs/cgroup" / ("" if controllers == "" else "cpu")
            for group in (mount / path.lstrip("/"), mount):
                if b"nr_throttled" in _content(group / "cpu.stat"):
                    return group / "cpu.stat"
    return None


class RunDelay:
    """How long the threads of this process were ready to run and did not, since the object was made. Time in which the
    quota stopped them is part of it.

    Reads /proc/self/task/*/schedstat: CPU ns, ns of delay, runs. Threads that have ended are left out.
    """

    def __init__(self, tasks: str = "/proc/self/task") -> None:
        self._tasks = tasks
        self._before = self._by_thread()

    def seconds(self) -> float | None:
        """None where the kernel does not tell (CONFIG_SCHED_INFO)."""
        now = self._by_thread()
        if not now:
            return None
        return sum(ns - self._before.get(thread, 0) for thread, ns in now.items()) / 1e9

    def _by_thread(self) -> dict[str, int]:
        try:
            threads = os.listdir(self._tasks)
        except OSError:
            return {}
        read = {thread: _schedstat(f"{self._tasks}/{thread}/schedstat").split() for thread in threads}
        return {thread: int(fields[1]) for thread, fields in read.items() if len(fields) > 1}


def _schedstat(path: str) -> bytes:
    """With as few calls as possible: it is read for every thread at the start and the end of every task."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(file, 128)
    except OSError:  # the thread has ended
        return b""
    finally:
        os.close(file)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def resident_mib(statm: Path = Path("/proc/self/statm")) -> float:
    """Resident memory of this process in MiB, shared pages included; 0 where the kernel does not tell."""
    fields = _content(statm).split()
    return round(int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20, 1) if len(fields) > 1 else 0.0


class CpuUsage:
    """What the process used since the last call, for `PhaseLog`.

    Args:
        cpu_ns: CPU nanoseconds of the process.
        throttled: nanoseconds for which, and periods in which, the quota stopped the process.
    """

    def __init__(self, cpu_ns: Callable[[], int], throttled: Callable[[], tuple[int, int]] = lambda: (0, 0)) -> None:
        self._cpu_ns, self._throttled = cpu_ns, throttled
        self._cpu, self._stopped = cpu_ns(), throttled()

    def __call__(self, name: str, length_ns: int) -> Usage:
        cpu, stopped = self._cpu_ns(), self._throttled()
        used = (cpu - self._cpu, stopped[0] - self._stopped[0], stopped[1] - self._stopped[1])
        self._cpu, self._stopped = cpu, stopped
        return used


class ThreadCpu:
    """Whether a thread has received a millisecond of CPU time since the last call that said so. A batch that takes
    minutes shows progress so."""

    def __init__(self) -> None:
        self._clock: int | None = None
        self._last = 0.0

    def watch(self, thread_id: int | None) -> None:
        """Watch the thread with this `threading.get_ident()`, or no thread."""
        self._clock = time.pthread_getcpuclockid(thread_id) if thread_id else None
        self._last = self._read()

    def advanced(self) -> bool:
        now = self._read()
        if now - self._last < 1e-3:
            return False
        self._last = now
        return True

    def _read(self) -> float:
        return time.clock_gettime(self._clock) if self._clock is not None else 0.0
