"""What the host gives: how many cores this process may really use (fewer than there are under an affinity or inside a
limited cgroup), and whether it stood still."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
import psutil

from orchestrator.fleet.cgroups import MOUNT

QUOTA_FILES = ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us")
MEMBERSHIP = Path("/proc/self/cgroup")


def usable_cores(mount: Path = MOUNT, membership: Path = MEMBERSHIP) -> float:
    """CPU seconds per second that the orchestrator and what it starts can have: the least of its affinity and of the
    quotas of every cgroup it is in."""
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
    # A quota holds for everything below it. Inside a container the path may be the host's, and lead nowhere here; the
    # container's own quota then stands at the mount.
    for path in _up_to(mount, folder):
        files = {}
        for name in QUOTA_FILES:
            with contextlib.suppress(OSError):
                files[name] = (path / name).read_text()
        quota = quota_cpus(files)
        if quota is not None:
            yield quota


def _up_to(mount: Path, folder: str) -> Iterable[Path]:
    path = mount / folder
    return [path, *path.parents[: len(path.relative_to(mount).parts)]]


def cpu_folder(membership: str, unified: bool) -> str:
    """The folder below the mount of the cgroup that limits the CPU, from /proc/self/cgroup; the mount's own folder of
    the controller where that file says nothing."""
    rows = [line.split(":", 2) for line in membership.splitlines() if line.count(":") >= 2]
    wanted = (row[2] for row in rows if (row[0] == "0" if unified else "cpu" in row[1].split(",")))
    inside = [part for part in next(wanted, "/").split("/") if part not in ("", ".", "..")]
    return "/".join(inside if unified else ["cpu", *inside])


def quota_cpus(files: Mapping[str, str]) -> float | None:
    """CPUs from the contents of `cpu.max` (version 2) or of the two `cpu.cfs_*` files (version 1); None: no limit."""
    try:
        if "cpu.max" in files:
            quota, period = files["cpu.max"].split()
        else:
            quota, period = files["cpu.cfs_quota_us"].strip(), files["cpu.cfs_period_us"].strip()
        return None if quota in ("max", "-1") else int(quota) / int(period)
    except (KeyError, ValueError, ZeroDivisionError):
        return None


# ---- a host that is not there ----------------------------------------------------------------------------------------

TICK_S = 0.01
STALL_S = 0.05
"""A thread that wanted to sleep for TICK_S and comes so late was kept from running."""

SERIOUS_STALL, SERIOUS_STEAL = 0.02, 0.05
"""Shares of the time, and of the CPU time, from which on a measurement says little of what was measured."""


class Disturbance(msgspec.Struct, frozen=True):
    """What was lost of `wall_s` seconds: `stalled_s` in which a thread that wanted to run did not, and the share of the
    CPU time that a hypervisor gave to others (0 where it does not tell)."""

    wall_s: float
    stalled_s: float
    stolen: float

    @property
    def serious(self) -> bool:
        return self.stalled_s > SERIOUS_STALL * self.wall_s or self.stolen > SERIOUS_STEAL

    def __str__(self) -> str:
        return (
            f"meanwhile the host stood still for {self.stalled_s:.2f} s, {self.stolen:.0%} of its CPU time was stolen"
        )


class HostWatch:
    """Watches from `with` to its end; `lost` tells what it saw."""

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
    """Seconds of all CPUs that were stolen, and all."""
    times = psutil.cpu_times()
    return float(getattr(times, "steal", 0.0)), float(sum(times))
