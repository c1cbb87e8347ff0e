"""Creates, limits, reads, empties and removes cgroups of versions 1 and 2. throttle.py computes the values."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping
from pathlib import Path

from edgebed.errors import LimitError
from edgebed.limits.shell import write
from edgebed.limits.spec import Limits
from edgebed.limits.throttle import (
    CGROUP_FILES,
    OPTIONAL_FILES,
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
"""The parent of all devices' cgroups. Systemd gives it the second name."""
CHILD = "device"
"""The cgroup that Edgebed makes below a container's cgroup if systemd manages the latter."""
MOVES = 100
"""How often to look for processes that were not moved yet: a process may fork during the move."""


def version_of(mount: Path = MOUNT) -> int:
    """2 if the unified hierarchy is in use, 1 if the controllers are mounted separately. Raises LimitError: neither is
    mounted."""
    if (mount / "cgroup.controllers").is_file():
        return 2
    if (mount / "cpu").is_dir() and (mount / "memory").is_dir():
        return 1
    raise LimitError(f"no cgroups at {mount}", hint="mount them, or use the software throttle")


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
    def of_process(cls, pid: int) -> Cgroup:
        """The cgroup that a process is in. Raises LimitError if there is no such process."""
        try:
            membership = Path(f"/proc/{pid}/cgroup").read_text()
        except OSError:
            raise LimitError(f"process {pid} has ended", hint="see its log") from None
        version = version_of()
        return cls(parse_membership(membership, version, MOUNT), version)

    def make(self) -> None:
        """Create the cgroup. In version 2 its controllers are first enabled from the root downwards."""
        for path in set(self.paths.values()):
            _make(path)
        if self.version == 2:
            path = self.paths["cpu"]
            for folder in (path.parent.parent, path.parent):
                write(folder / "cgroup.subtree_control", "+cpu +memory")
        self.favour()

    def take_in(self) -> Cgroup:
        """Move every process of this cgroup into a new child cgroup, and return the child. Version 2 only.

        Systemd rounds quotas to 1 % of a CPU in the cgroups that it manages. It never writes to the child. Raises
        LimitError: the kernel refuses, or new processes start faster than they can be moved.
        """
        child = Cgroup({controller: path / CHILD for controller, path in self.paths.items()}, self.version)
        _make(child.paths["cpu"])
        for _ in range(MOVES):
            if not (pids := self.pids()):
                write(self.paths["cpu"] / "cgroup.subtree_control", "+cpu +memory")
                return child
            for pid in pids:
                join(child, pid)
        raise LimitError(f"the processes of {self.paths['cpu']} cannot be moved", hint="restart the device")

    def favour(self) -> None:
        """Give all devices together priority over other programs of the host, up to their quotas. Changes only the
        cgroup that Edgebed made for them."""
        parent = self.paths["cpu"].parent
        if parent.name in (PARENT, SLICE):
            for name, value in priority_values(self.version).items():
                write(parent / name, value)

    def set(self, limits: Limits) -> None:
        self._write(cgroup_values(limits, self.version))

    def lift(self) -> None:
        """Remove the limits: with 0.1 CPU an agent takes minutes to start."""
        self._write(no_limits(self.version))

    def _write(self, values: Values) -> None:
        for controller, name, value in values:
            path = self.paths[controller] / name
            if name not in OPTIONAL_FILES or path.exists():
                write(path, value)

    def read(self) -> Group:
        files = {}
        for controller, names in CGROUP_FILES[self.version].items():
            for name in names:
                with contextlib.suppress(OSError):
                    files[name] = (self.paths[controller] / name).read_text()
        return parse_cgroup(files, self.version)

    def procs_files(self) -> list[str]:
        """The files into which a process writes its id to join the cgroup."""
        return sorted({str(path / "cgroup.procs") for path in self.paths.values()})

    def pids(self) -> list[int]:
        with contextlib.suppress(OSError):
            return [int(line) for line in (self.paths["cpu"] / "cgroup.procs").read_text().split()]
        return []

    def kill(self) -> None:
        """End every process in the cgroup."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def remove(self) -> bool:
        """Remove the cgroup. False while the kernel still has a process in it."""
        gone = True
        for path in set(self.paths.values()):
            try:
                path.rmdir()
            except FileNotFoundError:
                pass
            except OSError:
                gone = False
        return gone


def _make(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LimitError(
            f"cannot make the cgroup {path}: {error.strerror}", hint="run as root; cgroups must be writable"
        ) from None


def join(cgroup: Cgroup, pid: int) -> None:
    """Move a process into the cgroup; does nothing if it has ended. Raises LimitError if the kernel refuses it."""
    for name in cgroup.procs_files():
        try:
            Path(name).write_text(str(pid))
        except ProcessLookupError:  # the process has ended
            return
        except OSError as error:
            raise LimitError(f"{name} refuses process {pid}: {error.strerror}", hint="run as root") from None


def parse_membership(text: str, version: int, mount: Path) -> dict[str, Path]:
    """Paths by controller, parsed from /proc/PID/cgroup. Raises LimitError if a controller is missing."""
    rows = [line.split(":", 2) for line in text.splitlines()]
    if version == 2:
        path = next((row[2] for row in rows if row[0] == "0"), "/")
        return {controller: mount / path.lstrip("/") for controller in CGROUP_FILES[2]}
    found = {name: mount / name / row[2].lstrip("/") for row in rows for name in row[1].split(",") if name}
    lacking = [c for c in CGROUP_FILES[1] if c not in found]
    if lacking:
        raise LimitError(f"the kernel has no cgroup controller {', '.join(lacking)}", hint="enable it")
    return {c: found[c] for c in CGROUP_FILES[1]}
