"""Before a test is ended by pytest-timeout, its report gets the stack of every process that the test has started."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

EARLIER_S = 20.0
"""The stacks are taken so long before the test is ended, because that ends the processes, too."""
DUMP_S = 5.0
_TIMER = pytest.StashKey[threading.Timer]()


def stacks() -> str:
    """This process and all that descend from it: command line, state, what the kernel waits for, Python's stack."""
    us = psutil.Process()
    return "\n".join(_stack(process) for process in [us, *us.children(recursive=True)])


def _stack(process: psutil.Process) -> str:
    try:
        said = f"---- {process.pid} ({process.status()}): {' '.join(process.cmdline())[:300]}"
        waits = Path(f"/proc/{process.pid}/wchan").read_text()
    except (psutil.Error, OSError) as error:
        return f"---- {process.pid}: {error}"
    tool = shutil.which("py-spy", path=str(Path(sys.executable).parent))
    if tool is None or "python" not in process.name():
        return f"{said}\nwaits in the kernel: {waits}"
    command = [tool, "dump", "--nonblocking", "--pid", str(process.pid)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DUMP_S, check=False)
    except subprocess.TimeoutExpired:
        return f"{said}\nwaits in the kernel: {waits}; py-spy did not end within {DUMP_S:.0f} s"
    return f"{said}\nwaits in the kernel: {waits}\n{done.stdout or done.stderr}"


def _report() -> None:
    print(f"This test hangs.\n{stacks()}", file=sys.stderr, flush=True)


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    timer = threading.Timer(max(settings.timeout - EARLIER_S, settings.timeout / 2), _report)
    timer.daemon = True
    item.stash[_TIMER] = timer
    timer.start()


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> None:
    if (timer := item.stash.get(_TIMER, None)) is not None:
        timer.cancel()
