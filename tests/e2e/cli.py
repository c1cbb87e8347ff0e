"""`edgebed run` as a person uses it: a process of its own, and what it leaves behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import psutil

from orchestrator.records.reader import read
from orchestrator.records.types import LimitsSet, Record
from tests.hangs import finish

R = TypeVar("R")

MAIN = "from orchestrator.cli import main; main()"
ONE_BROKER = """
import functools, os
from orchestrator.runs import opened_fleet
opened_fleet.open_broker = functools.partial(opened_fleet.open_broker, kinds=(os.environ["EDGEBED_TEST_BROKER"],))
"""
"""Lets `EDGEBED_TEST_BROKER=embedded pytest tests/e2e/test_run.py` run these tests over another broker."""

NO_CALIBRATION = """
from orchestrator.calibration.calibrate import Calibration
from orchestrator.runs import session
async def left_out(*_):
    return Calibration((), False)
session.calibrate_fleet = left_out
"""
"""Saves the 10 s before each run where a test is about something else."""


HEED_INTERRUPTS = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
"""A shell that started the tests in the background made them ignore Ctrl-C; what they start inherits that."""


def command(calibrated: bool) -> list[str]:
    one_broker = ONE_BROKER if "EDGEBED_TEST_BROKER" in os.environ else ""
    return [sys.executable, "-c", HEED_INTERRUPTS + one_broker + ("" if calibrated else NO_CALIBRATION) + MAIN]


FLEET = """
name: small
devices:
  - {{profile: {folder}/weak.yaml, count: 2, name: weak}}
  - {{profile: {folder}/strong.yaml, name: strong}}
"""
WEAK = "cpus: 0.25\nuplink_mbit_s: 20\ndownlink_mbit_s: 20\nmemory_mib: 1024\n"
STRONG = "cpus: 0.5\nuplink_mbit_s: 50\ndownlink_mbit_s: 50\nmemory_mib: 1024\n"
EXPERIMENT = """
name: e2e
fleet: {folder}/fleet.yaml
model: {{name: resnet-tiny}}
methods:
  - {{name: dtfl}}
  - {{name: fedavg}}
training: {{rounds: 3, batch_size: 32, heartbeat_s: 0.5, codec: {{dtype: uint8, zstd: true}}, seed: 2}}
"""


def write_experiment(folder: Path) -> Path:
    """Three devices on digits; the files of an experiment in `folder`."""
    folder.mkdir(exist_ok=True)
    (folder / "weak.yaml").write_text(WEAK)
    (folder / "strong.yaml").write_text(STRONG)
    (folder / "fleet.yaml").write_text(FLEET.format(folder=folder))
    path = folder / "experiment.yaml"
    path.write_text(EXPERIMENT.format(folder=folder))
    return path


class Cli:
    """One `edgebed` process, in a process group of its own as a shell would start it."""

    def __init__(self, folder: Path, *arguments: str, prefix: tuple[str, ...] = (), calibrated: bool = True) -> None:
        self.runs = folder / "runs"
        self.began = time.time()
        env = os.environ | {"EDGEBED_RUNS": str(self.runs), "PYTHONDONTWRITEBYTECODE": "1"}
        self.process = subprocess.Popen(
            [*prefix, *command(calibrated), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
            cwd=folder,
            start_new_session=True,
        )

    def wait(self, timeout_s: float = 120.0) -> tuple[int, str, str]:
        """Exit code, standard output, standard error."""
        out, err = finish(self.process, timeout_s)
        return self.process.returncode, out, err

    def interrupt(self) -> None:
        """Ctrl-C: the terminal tells the whole process group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def folders(self) -> list[Path]:
        """Run folders, in the order in which the runs began."""
        files = sorted(self.runs.glob("*/experiment.yaml"), key=lambda path: path.stat().st_mtime)
        return [path.parent for path in files]

    def records(self) -> list[Record]:
        folders = [f for f in self.folders() if (f / "records.jsonl").is_file()]
        return read(folders[-1] / "records.jsonl") if folders else []

    def expect(self, kind: type[R], true: Callable[[R], bool], timeout_s: float = 90.0) -> R:
        """The first record of `kind` for which `true` holds, when it has been written."""

        def found() -> R | None:
            return next((r for r in self.records() if isinstance(r, kind) and true(r)), None)

        until(lambda: found() is not None or self.process.poll() is not None, timeout_s)
        record = found()
        assert record is not None, f"the process ended without it: {finish(self.process)}"
        return record

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def end(self) -> None:
        """For a test that failed half-way."""
        if self.process.poll() is None:
            self.process.kill()
            finish(self.process)


@contextlib.contextmanager
def cli(folder: Path, *arguments: str, prefix: tuple[str, ...] = (), calibrated: bool = True) -> Iterator[Cli]:
    """The process of `edgebed ARGUMENTS`; without its calibration where `calibrated` is False."""
    made = Cli(folder, *arguments, prefix=prefix, calibrated=calibrated)
    try:
        yield made
    finally:
        made.end()


def until(condition: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not so within {timeout_s:.0f} s"
        time.sleep(0.05)


def fleet_id(records: list[Record]) -> str:
    """The id of the local fleet that a run used last."""
    limits = [record for record in records if isinstance(record, LimitsSet)]
    return limits[-1].details["netns"].split("-")[1]


def traces(fleet: str) -> set[str]:
    """What a fleet has in the kernel and under /run: network namespaces, links, cgroups, its folder."""
    names = Path("/run/netns").glob(f"edgebed-{fleet}-*")
    groups = (path for path in Path("/sys/fs/cgroup").glob(f"**/edgebed/{fleet}-*"))
    return {str(path) for paths in (names, groups, Path("/run/edgebed").glob(fleet)) for path in paths}


def summary(folder: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return result
