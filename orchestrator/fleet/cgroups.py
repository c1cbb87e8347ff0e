"""cgroups of version 1 and 2: made, limited, read, emptied and removed. The values come from throttle.py."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping
from pathlib import Path

from edgebed.errors import LimitError
from orchestrator.fleet.profile import Limits
from orchestrator.fleet.shell import write
from orchestrator.fleet.throttle import (
    CGROUP_FILES,
    SWAP_FILES,
    Group,
    Values,
    cgroup_values,
    no_limits,
    parse_cgroup,
    priority_values,
)

MOUNT = Path("/sys/fs/cgroup")
PARENT = "edgebed"
SLICE = "edgebed.slice"
"""The parent of all devices' cgroups; the second where systemd names them."""


def version_of(mount: Path = MOUNT) -> int:
    """2 where the unified hierarchy is the one in use, 1 where controllers are mounted apart.

    Raises:
        LimitError: neither.
    """
    if (mount / "cgroup.controllers").is_file():
        return 2
    if (mount / "cpu").is_dir() and (mount / "memory").is_dir():
        return 1
    raise LimitError(f"no cgroups at {mount}", cure="mount them, or use the software throttle")


class Cgroup:
    """One cgroup, by its path in every hierarchy (version 1 has one hierarchy per controller)."""

    def __init__(self, paths: Mapping[str, Path], version: int) -> None:
        self.paths, self.version = dict(paths), version

    @classmethod
    def named(cls, name: str, mount: Path = MOUNT) -> Cgroup:
        """The cgroup `edgebed/<name>` of this host."""
        version = version_of(mount)
        roots = {c: mount if version == 2 else mount / c for c in CGROUP_FILES[version]}
        return cls({c: root / PARENT / name for c, root in roots.items()}, version)

    @classmethod
    def of_process(cls, pid: int, mount: Path = MOUNT) -> Cgroup:
        """The cgroup that a process is in."""
        return cls(
            parse_membership(Path(f"/proc/{pid}/cgroup").read_text(), version_of(mount), mount), version_of(mount)
        )

    def make(self) -> None:
        """Create it; version 2 needs its controllers switched on from the root down."""
        for path in set(self.paths.values()):
            try:
                path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise LimitError(
                    f"cannot make the cgroup {path}: {error.strerror}", cure="run as root; cgroups must be writable"
                ) from None
        if self.version == 2:
            path = self.paths["cpu"]
            for folder in (path.parent.parent, path.parent):
                write(folder / "cgroup.subtree_control", "+cpu +memory")
        self.favour()

    def favour(self) -> None:
        """Let all devices together go before other programs of the host, up to their quotas. Only ever done to the
        cgroup that Edgebed made for them."""
        parent = self.paths["cpu"].parent
        if parent.name in (PARENT, SLICE):
            for name, value in priority_values(self.version).items():
                write(parent / name, value)

    def set(self, limits: Limits) -> None:
        self._write(cgroup_values(limits, self.version))

    def lift(self) -> None:
        """No limits: an agent under 0.1 CPU takes minutes to start."""
        self._write(no_limits(self.version))

    def _write(self, values: Values) -> None:
        for controller, name, value in values:
            path = self.paths[controller] / name
            if name not in SWAP_FILES or path.exists():
                write(path, value)

    def read(self) -> Group:
        files = {}
        for controller, names in CGROUP_FILES[self.version].items():
            for name in names:
                with contextlib.suppress(OSError):
                    files[name] = (self.paths[controller] / name).read_text()
        return parse_cgroup(files, self.version)

    def procs_files(self) -> list[str]:
        """Files into which a process writes its id to join."""
        return sorted({str(path / "cgroup.procs") for path in self.paths.values()})

    def pids(self) -> list[int]:
        with contextlib.suppress(OSError):
            return [int(line) for line in (self.paths["cpu"] / "cgroup.procs").read_text().split()]
        return []

    def kill(self) -> None:
        """End every process in it."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def remove(self) -> bool:
        """Remove it; False while the kernel still holds a process in it."""
        gone = True
        for path in set(self.paths.values()):
            try:
                path.rmdir()
            except FileNotFoundError:
                pass
            except OSError:
                gone = False
        return gone


def parse_membership(text: str, version: int, mount: Path) -> dict[str, Path]:
    """Paths by controller, from /proc/PID/cgroup. Raises LimitError where a controller is missing."""
    rows = [line.split(":", 2) for line in text.splitlines()]
    if version == 2:
        path = next((row[2] for row in rows if row[0] == "0"), "/")
        return {controller: mount / path.lstrip("/") for controller in CGROUP_FILES[2]}
    found = {name: mount / name / row[2].lstrip("/") for row in rows for name in row[1].split(",") if name}
    lacking = [c for c in CGROUP_FILES[1] if c not in found]
    if lacking:
        raise LimitError(f"the kernel has no cgroup controller {', '.join(lacking)}", cure="enable it")
    return {c: found[c] for c in CGROUP_FILES[1]}
