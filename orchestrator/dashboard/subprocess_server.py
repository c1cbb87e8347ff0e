"""Starts the page beside a run, in a process of its own, so that it cannot slow the run's event loop."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import msgspec

from edgebed.errors import UsageError
from edgebed.module_process import module_command
from orchestrator.dashboard.serve import PageAddress

START_S = 30.0
"""A page that has not printed its address by then has failed."""


@contextlib.contextmanager
def page_beside(
    library: Path, experiment: str, place: PageAddress, notify: Callable[[str], None]
) -> Iterator[Callable[[str], None]]:
    """Serve a page with the runs of `experiment` in `library` that begin or continue from now on, until the block ends.
    Gives a function that shows a line on the page, as what is done before the next round. Raises UsageError: it could
    not be served."""
    order = {"library": str(library), "since": time.time() - 1, "experiment": experiment, "place": place}
    errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 -- not a pipe: nobody would read it
    process = subprocess.Popen(
        module_command("orchestrator.dashboard"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        start_new_session=True,  # Ctrl-C is for the run; the page ends after it
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with contextlib.suppress(BrokenPipeError):  # not as an argument: a token would be seen in `ps`
            print(msgspec.json.encode(order).decode(), file=process.stdin, flush=True)
        line = _first_line(process.stdout)
        if not line:
            errors.seek(0)
            why = errors.read().strip()[-300:] or f"it said nothing within {START_S:.0f} s"
            raise UsageError(f"the page could not be served: {why}", hint="leave out --dashboard")
        notify(f"Live page: {line}")
        os.set_blocking(process.stdin.fileno(), False)  # a page that hangs holds nothing up
        yield lambda line: _tell(process, line)
    finally:
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        errors.close()


def _tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        os.write(process.stdin.fileno(), f"{line.partition(chr(10))[0][:400]}\n".encode())


def _first_line(stream: IO[str]) -> str:
    """The first line of the page's output, its address; "" where it ended or printed nothing in time."""
    ready, _, _ = select.select([stream], [], [], START_S)
    return stream.readline().strip() if ready else ""
