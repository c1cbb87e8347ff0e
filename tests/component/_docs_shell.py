"""A shell in which the commands of a page are typed: its folder, its programs, and little work for `edgebed`."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType

import psutil
import yaml

from tests import warm
from tests.docs_blocks import ROOT, Block
from tests.e2e.cli import NO_CALIBRATION
from tests.hangs import run

ADDED, CHANGED = " (added)", " (changed keys)"

EDGEBED = """
import sys
sys.path.insert(0, {root!r})
from tests.component._docs_quick import quick
sys.argv = ["edgebed", *quick(sys.argv[1:], {rounds})]
{no_calibration}
from orchestrator.cli import main
main()
"""
PYTHON = """#!/bin/sh
exec {python} "$@"
"""
MOSQUITTO = """#!/bin/sh
# As root a broker of the page's becomes another user, who may not enter the folder of a test.
if [ "$(id -u)" = 0 ] && [ -f mosquitto.conf ]; then printf 'user root\\n' >> mosquitto.conf; fi
PATH=$PATH:/usr/sbin exec "$(PATH=${PATH#*:}:/usr/sbin command -v mosquitto)" "$@"
"""


class Shell:
    """A folder with `profiles` of the tree and a copy of its `results`, in which a reader works through a page."""

    def __init__(self, folder: Path, rounds: int) -> None:
        self.folder = folder / "reader"
        programs = folder / "bin"
        for made in (self.folder, programs):
            made.mkdir()
        (self.folder / "profiles").symlink_to(ROOT / "profiles")
        shutil.copytree(ROOT / "results", self.folder / "results")
        ours = programs / "edgebed.py"
        ours.write_text(EDGEBED.format(root=str(ROOT), rounds=rounds, no_calibration=NO_CALIBRATION), encoding="utf-8")
        for name, command in {"edgebed": [*warm.python(), str(ours)], "python": [sys.executable]}.items():
            self._program(programs / name, PYTHON.format(python=shlex.join(command)))
        self._program(programs / "mosquitto", MOSQUITTO)
        path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        mine = {"PATH": path, "XDG_STATE_HOME": str(folder / "state"), "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "120"}
        self.env = {name: value for name, value in os.environ.items() if name != "EDGEBED_RUNS"} | mine

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """End what a block that failed has left: a broker, a standing fleet."""
        for process in psutil.process_iter(["environ"]):
            if (process.info["environ"] or {}).get("XDG_STATE_HOME") == self.env["XDG_STATE_HOME"]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGTERM)

    @staticmethod
    def _program(path: Path, text: str) -> None:
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)

    def write(self, block: Block) -> None:
        """A file of the page; or one in which keys change, or whose class gets further methods."""
        if block.title.endswith(CHANGED):
            path = self.folder / block.title.removesuffix(CHANGED)
            keys = {**yaml.safe_load(path.read_text("utf-8")), **yaml.safe_load(block.body)}
            path.write_text(yaml.safe_dump(keys, sort_keys=False), encoding="utf-8")
        elif block.title.endswith(ADDED):
            with (self.folder / block.title.removesuffix(ADDED)).open("a", encoding="utf-8") as file:
                file.write(block.body.split("as above\n", 1)[1])
        else:
            path = self.folder / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.body, encoding="utf-8")

    def type(self, block: Block) -> subprocess.CompletedProcess[str]:
        """Run the commands of a block; it ends at the first one that fails."""
        return run(["bash", "-euo", "pipefail", "-c", block.script], 300, cwd=self.folder, env=self.env)
