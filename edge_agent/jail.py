"""The file system of one forked agent: its program, the system's libraries, its shard and plug-ins, read-only, a /proc
with only its own processes, and an empty /tmp. Nothing else of the host is in it.

The program keeps its paths, even if it is in a folder that only root may enter.
"""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Iterable
from pathlib import Path

from edge_agent.privileges import CLONE_NEWIPC, CLONE_NEWNS, mount, pivot_root, unmount, unshare
from edgebed.module_process import HOME

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18

SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/sys", "/etc/ld.so.cache", "/etc/localtime")
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
TMP_MIB = 256
SHARD, PLUGINS = "/shard.safetensors", "/plugins"


def enter(root: Path, shard: Path, plugins: str = "") -> None:
    """Build the file system on the empty folder `root` and make it the root of this process, which must already be in
    its own PID namespace. Raises OSError with the name of the call that failed."""
    os.umask(0o022)  # the agent runs as another user and must be able to enter the folders made here
    unshare(CLONE_NEWNS | CLONE_NEWIPC)
    mount("none", "/", "", MS_REC | MS_PRIVATE)
    mount("edgebed", str(root), "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    # First, for the program may lie below /tmp.
    _mount_new(root / "tmp", "tmpfs", MS_NOSUID | MS_NODEV, f"size={TMP_MIB}m,mode=1777")
    for path in outermost([*SYSTEM, *program(), *DEVICES]):
        _bind(path, root, MS_NOSUID | (0 if path in DEVICES else MS_RDONLY))
    _bind(str(shard), root, MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, at=SHARD)
    if plugins:
        _bind(plugins, root, MS_RDONLY | MS_NOSUID | MS_NODEV, at=PLUGINS)
    _mount_new(root / "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount("none", str(root), "", MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
    os.chdir(root)
    pivot_root(".", ".")
    unmount(".")
    os.chdir("/tmp")


def program() -> list[str]:
    """Folders of this Python, its packages and ours, without the current directory and the source tree around our
    packages."""
    ours = [os.path.join(HOME, package) for package in ("edge_agent", "edgebed")]
    installed = {*site.getsitepackages(), site.getusersitepackages()}
    not_whole = {os.getcwd(), "/tmp", HOME} - installed
    roots = [sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix]
    return [*roots, *(path for path in sys.path if os.path.isdir(path) and path not in not_whole), *ours]


def outermost(paths: Iterable[str]) -> list[str]:
    """The least set of paths to bind so that all of `paths`, and the targets of their links, exist."""
    wanted = {os.path.abspath(path) for path in paths if os.path.exists(path)}
    found: list[str] = []
    for path in sorted(wanted | {os.path.realpath(path) for path in wanted}):
        if path != "/" and not any(path.startswith(f"{outer}/") for outer in found):
            found.append(path)
    return found


def _mount_new(at: Path, kind: str, flags: int, data: str = "") -> None:
    at.mkdir()
    mount(kind, str(at), kind, flags, data)


def _bind(path: str, root: Path, flags: int, at: str = "") -> None:
    source, target = os.path.realpath(path), root / (at or path).lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    if os.path.isdir(source):
        target.mkdir(exist_ok=True)
    else:
        target.touch()
    mount(source, str(target), "", MS_BIND | MS_REC)
    mount("none", str(target), "", MS_REMOUNT | MS_BIND | flags)
