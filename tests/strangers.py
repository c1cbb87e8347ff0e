"""The plug-in of a stranger: `damped`, in a folder of its own, or installed as a package."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import edgebed
from edgebed.methods.base import HALVES, METHODS
from edgebed.plugin_code import LOADED, forget

SOURCE = Path(__file__).parent / "stranger" / "damped"

PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "strangers-damped"
version = "1.0"
dependencies = ["numpy", "edgebed"]
[project.entry-points."edgebed.methods"]
damped = "damped.method:Damped"
[tool.setuptools]
packages = ["damped"]
package-data = { damped = ["*.txt"] }
"""

FILE = '''"""FedAvg under another name."""

from edgebed.methods.fedavg import FedAvg


class {cls}(FedAvg):
    name = "{name}"
'''


def write_file(folder: Path, module: str = "stranger_file", name: str = "stranger") -> Path:
    """A plug-in of one file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{module}.py"
    path.write_text(FILE.format(cls="Stranger", name=name))
    return path


def write_folder(folder: Path) -> Path:
    """The plug-in as a folder below `folder`."""
    shutil.copytree(SOURCE, folder / "damped", ignore=shutil.ignore_patterns("__pycache__"))
    return folder / "damped"


def install(folder: Path) -> Path:
    """The plug-in as a package that pip has installed; returns the folder that belongs on the module path."""
    project, site = folder / "project", folder / "site"
    write_folder(project)
    (project / "pyproject.toml").write_text(PROJECT)
    how = ["--offline", "--no-index", "--no-deps", "--no-build-isolation", "--quiet", "--python", sys.executable]
    subprocess.run(
        [sys.executable, "-m", "uv", "pip", "install", *how, "--target", str(site), str(project)],
        check=True,
        capture_output=True,
    )
    return site


def accuracies(run: edgebed.Run) -> list[float]:
    found: list[float] = run.rounds["accuracy"].tolist()
    return found


def forget_all() -> None:
    """This process uses no plug-ins."""
    for name in list(LOADED):
        forget(name)


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """Leaves no plug-in, and no half of one, to later tests; for modules that import it."""
    METHODS.classes()  # they bring their halves, which stay
    halves = dict(HALVES)
    yield
    forget_all()
    HALVES.clear()
    HALVES.update(halves)
