"""Starts the page beside a run, in a process of its own, so that it cannot slow the run's event loop."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from edgebed.errors import UsageError
from orchestrator.dashboard.serve import Place


@contextlib.contextmanager
def page_beside(library: Path, experiment: str, place: Place, say: Callable[[str], None]) -> Iterator[None]:
    """A page with the runs of `experiment` in `library` that begin, or go on, from now. It ends with the block.

    Raises:
        UsageError: it could not be served.
    """
    order = {"library": str(library), "since": time.time() - 1, "experiment": experiment, "place": place}
    process = subprocess.Popen(
        [sys.executable, "-m", "orchestrator.dashboard", msgspec.json.encode(order).decode()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for the run; the page ends after it
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline().strip()
        if not line:
            _, errors = process.communicate()
            raise UsageError(f"the page could not be served: {errors.strip()[-300:]}", cure="leave out --dashboard")
        say(f"Live page: {line}")
        yield
    finally:
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
