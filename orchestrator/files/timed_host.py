"""Gives what is timed the host for itself: long computations pause meanwhile.

There are two lock files, which the kernel frees however their holders end. What is timed (a fleet, a calibration, a
benchmark, the tests) holds the first while it lasts, together with others. A computation holds the second while it
works. What is timed waits at its start until nobody holds the second. A computation looks at the first, pauses, and
lets the second go.

    python -m orchestrator.files.timed_host COMMAND ...     runs a command that is timed
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from orchestrator.files.shared_lock import TEMPORARY, lock_in_time, opened, shared_lock, try_lock

PAUSE_S = 30.0
"""Seconds within which computations pause."""


def _file(name: str) -> Path:
    """A lock that every user of this host shares; under EDGEBED_CACHE where that is set."""
    folder = Path(os.environ.get("EDGEBED_CACHE") or TEMPORARY)
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"edgebed-{name}.lock"


@contextlib.contextmanager
def timed(notify: Callable[[str], None] = lambda line: None) -> Iterator[None]:
    """Hold the host for something whose time matters. Raises FleetError where a computation does not pause in time."""
    path = _file("computing")
    with _held("timed"), opened(path) as file:
        if not _free(file):
            notify("waiting until computations on this host pause")
            lock_in_time(file, path, PAUSE_S)
            fcntl.flock(file, fcntl.LOCK_UN)
        yield


def is_timed() -> bool:
    """Whether anything that is timed holds the host."""
    with opened(_file("timed")) as file:
        return not _free(file)


def computing() -> AbstractContextManager[None]:
    """Work that pauses while `is_timed`."""
    return _held("computing")


def _held(name: str) -> AbstractContextManager[None]:
    return shared_lock(_file(name), PAUSE_S, kind=fcntl.LOCK_SH)


def _free(file: int) -> bool:
    """Whether no other has the lock of an open file; it is not held afterwards."""
    if free := try_lock(file):
        fcntl.flock(file, fcntl.LOCK_UN)
    return free


def main() -> int:
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is for the command, which may have to clean up
    with timed(lambda line: print(line, file=sys.stderr)):
        return subprocess.run(sys.argv[1:], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
