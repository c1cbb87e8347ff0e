"""Starts a module of ours in a process of its own, which takes no code from the current directory.

`python -m` puts the current directory first on the module path: what lies there as `json.py`, or as a package with the
name of one of ours, would be run. The process is isolated instead (`-I`): neither that directory nor the user's site
folder is on its path, and it heeds no environment variable PYTHON… .

This file is also the program that such a process runs. It imports nobody, and runs on Python 3.10, which has no `-P`.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

OURS = ("edgebed", "orchestrator", "edge_agent")
HOME = str(Path(__file__).absolute().parent.parent)
"""The folder in which this package stands."""
END_OF_FOLDERS = "--"


def module_command(module: str, *arguments: str) -> list[str]:
    """A command that does what `python -m MODULE ARGUMENTS` does, with this Python and with our packages as this
    process has them. `module` may be a package with a `__main__`."""
    folders = [HOME, *folders_of_environment()]
    return [sys.executable, "-I", str(Path(__file__).absolute()), *folders, END_OF_FOLDERS, module, *arguments]


def folders_of_environment() -> list[str]:
    """What PYTHONPATH has put on the module path of this process, and the isolated one would lack: torch comes so on
    many clusters. A relative entry, an empty one and the current directory are left out."""
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    folders = [os.path.abspath(entry) for entry in entries if os.path.isabs(entry)]
    return [folder for folder in folders if folder in sys.path and _elsewhere(folder)]


def _elsewhere(path: str) -> bool:
    """Whether it exists and is not the current directory."""
    try:
        return not os.path.samefile(path, os.curdir)
    except OSError:
        return False


class OurPackages:
    """Finds our packages in one folder, whatever else is installed; a finder of `sys.meta_path`."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [self._folder], target) if name in OURS else None


def start(arguments: Sequence[str]) -> None:
    """Run a module as `module_command` says. The folders of PYTHONPATH come behind the standard library, and before the
    installed packages, as in the process that starts this one."""
    end = arguments.index(END_OF_FOLDERS)
    home, *folders = arguments[:end]
    sys.meta_path.insert(0, OurPackages(home))
    place = next((index for index, path in enumerate(sys.path) if path.endswith("-packages")), len(sys.path))
    sys.path[place:place] = folders
    if home not in sys.path:
        sys.path.append(home)
    module, *sys.argv[1:] = arguments[end + 1 :]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    start(sys.argv[1:])
