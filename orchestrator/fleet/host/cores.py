"""What the host provides: the number of cores that this process may use (an affinity or a cgroup quota reduces it), and
whether the host paused during a measurement."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
import psutil

from edgebed.limits.cgroups import MOUNT
from edgebed.limits.cpu_quota import QUOTA_FILES, parse_quota

MEMBERSHIP = Path("/proc/self/cgroup")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Random since the boot, and the same in all containers."""


def machine_id() -> str:
    """Of the machine that this process is on, until its next boot; "" where the kernel tells none."""
    with contextlib.suppress(OSError):
        return BOOT_ID.read_text().strip()
    return ""


def usable_cores(mount: Path = MOUNT, membership: Path = MEMBERSHIP) -> float:
    """CPU seconds per second that the orchestrator and its child processes can use: the smallest of the affinity and
    the quotas of every cgroup that contains this process."""
    return min([float(_affinity()), *_own_quotas(mount, membership)])


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # not Linux: no affinity, no cgroups


def _own_quotas(mount: Path, membership: Path) -> Iterator[float]:
    try:
        folder = cpu_folder(membership.read_text(), (mount / "cgroup.controllers").is_file())
    except OSError:
        return
    # A quota applies to everything below it. Inside a container the path may be the host's and not exist here; then the
    # container's own quota is at the mount point.
    for path in _up_to(mount, folder):
        quota = quota_cpus(quota_files(path))
        if quota is not None:
            yield quota


def _up_to(mount: Path, folder: str) -> Iterable[Path]:
    path = mount / folder
    return [path, *path.parents[: len(path.relative_to(mount).parts)]]


def cpu_folder(membership: str, unified: bool) -> str:
    """The folder of the cgroup that limits the CPU, relative to the mount point, parsed from /proc/self/cgroup. If that
    file says nothing, the controller's own folder."""
    rows = [line.split(":", 2) for line in membership.splitlines() if line.count(":") >= 2]
    wanted = (row[2] for row in rows if (row[0] == "0" if unified else "cpu" in row[1].split(",")))
    inside = [part for part in next(wanted, "/").split("/") if part not in ("", ".", "..")]
    return "/".join(inside if unified else ["cpu", *inside])


def quota_files(folder: Path) -> dict[str, str]:
    """Contents of those of QUOTA_FILES that a cgroup has."""
    files = {}
    for name in QUOTA_FILES:
        with contextlib.suppress(OSError):
            files[name] = (folder / name).read_text()
    return files


def quota_cpus(files: Mapping[str, str]) -> float | None:
    """CPUs from the contents of QUOTA_FILES. None: no limit, or the files are not understood."""
    try:
        quota = parse_quota(files)
    except (KeyError, ValueError):
        return None
    return quota.cpus if quota else None


COARSE_CLOCK = 6
"""CLOCK_MONOTONIC_COARSE of Linux: its resolution is one tick."""


def tick_s() -> float | None:
    """Seconds of one tick of this kernel's accounting, 1 / CONFIG_HZ; None where it does not tell. A thread that has
    used up its quota is stopped at the next tick."""
    try:
        return time.clock_getres(COARSE_CLOCK)
    except OSError:
        return None


def kernel_hz() -> int | None:
    """Ticks per second; None where the kernel does not tell."""
    tick = tick_s()
    return round(1 / tick) if tick else None


# ---- pauses of the host ----------------------------------------------------------------------------------------------

TICK_S = 0.01
STALL_S = 0.05
"""If a thread sleeps for TICK_S and wakes up later than this, the host did not let it run."""

SERIOUS_STALL, SERIOUS_STEAL = 0.02, 0.05
"""Shares of the wall time and of the CPU time. If a pause is longer, a measurement is not reliable."""


class Disturbance(msgspec.Struct, frozen=True):
    """What was lost of `wall_s` seconds. `stalled_s`: seconds in which a ready thread did not run. `stolen`: the share
    of the CPU time that the hypervisor gave to others (0 if the hypervisor does not report it)."""

    wall_s: float
    stalled_s: float
    stolen: float

    @property
    def serious(self) -> bool:
        return self.stalled_s > SERIOUS_STALL * self.wall_s or self.stolen > SERIOUS_STEAL

    def __str__(self) -> str:
        return f"meanwhile the host paused for {self.stalled_s:.2f} s, {self.stolen:.0%} of its CPU time was stolen"


class HostWatch:
    """Watches the host for the length of its `with` block; `lost` returns the result."""

    def __enter__(self) -> HostWatch:
        self._end, self._stalled_s, self._begun_s, self._before = threading.Event(), 0.0, time.monotonic(), _cpu_times()
        self._thread = threading.Thread(target=self._watch, name="host-watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self._wall_s, self._after = time.monotonic() - self._begun_s, _cpu_times()

    def _watch(self) -> None:
        last = time.monotonic()
        while not self._end.wait(TICK_S):
            now = time.monotonic()
            if now - last > STALL_S:
                self._stalled_s += now - last - TICK_S
            last = now

    def lost(self) -> Disturbance:
        stolen, total = (after - before for before, after in zip(self._before, self._after, strict=True))
        return Disturbance(self._wall_s, self._stalled_s, stolen / total if total > 0 else 0.0)


def _cpu_times() -> tuple[float, float]:
    """CPU seconds of all CPUs: stolen, and total."""
    times = psutil.cpu_times()
    return float(getattr(times, "steal", 0.0)), float(sum(times))
