"""How many cores this process may really use: fewer than the host has under an affinity or inside a limited cgroup."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

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
