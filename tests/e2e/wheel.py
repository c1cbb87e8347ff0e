"""The wheel of this tree, and virtual environments with it."""

from __future__ import annotations

import os
import sys
import sysconfig
import venv
from pathlib import Path

from tests.hangs import run

ROOT = Path(__file__).parents[2]


class Installed:
    """The wheel in a virtual environment. Its dependencies are read from the environment of the tests."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.wheel, self.python = wheel, folder / "venv" / "bin" / "python"
        venv.create(folder / "venv", symlinks=True)
        pip("--python", str(self.python), "install", "--no-deps", "--no-index", str(wheel))
        self.packages = Path(self("python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
        (self.packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))

    def __call__(self, command: str, *arguments: str, cwd: Path = Path("/")) -> str:
        """Run a command of the environment; returns its standard output."""
        env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "EDGEBED_RUNS")}
        done = run([str(self.python.parent / command), *arguments], cwd=cwd, env=env)
        assert done.returncode == 0, done.stderr
        return done.stdout


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = run(command, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def build_wheel(folder: Path) -> Path:
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), ".")
    return next(folder.glob("*.whl"))
