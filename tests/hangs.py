"""What a test that waits in vain tells: what its commands have said so far, and the stack of every process.

Before pytest-timeout ends a test, its report gets the stacks. If the test does not end then either, because its
clean-up waits in vain, the worker's process ends: pytest-xdist counts the test as failed and goes on with another
worker. `run` and `finish` give a command its own time.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

EARLIER_S = 20.0
"""The stacks are taken so long before the test is ended, because that ends the processes, too."""
DUMP_S = 5.0
LATER_S = 120.0
"""The clean-up of a test that was ended has so long."""
COMMAND_S = 120.0
"""Seconds in which a command of a test has ended, where the test says nothing else."""
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


def run(argv: Sequence[str], timeout_s: float = COMMAND_S, **options: Any) -> subprocess.CompletedProcess[str]:
    """A command with its output as text. Raises as `finish`."""
    pipe = subprocess.PIPE
    process = subprocess.Popen([*argv], stdout=pipe, stderr=pipe, text=True, **options)
    out, err = finish(process, timeout_s)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def finish(process: subprocess.Popen[str], timeout_s: float = COMMAND_S) -> tuple[str, str]:
    """Standard output and error of a command, once it has ended and nobody holds its pipes.

    Raises:
        AssertionError: it has not in time, and was killed; with what it said until then, and the stacks.
    """
    try:
        return process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as late:
        found = stacks()
        process.kill()
        out, err = (_text(said) for said in (late.output, late.stderr))
    command = " ".join(map(str, process.args)) if isinstance(process.args, list) else process.args
    raise AssertionError(f"no end of `{command}` within {timeout_s:.0f} s\n{out}\nstandard error: {err}\n{found}")


def _text(said: str | bytes | None) -> str:
    return said.decode(errors="replace") if isinstance(said, bytes) else said or ""


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


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool, bool]:
    """pytest-timeout is not enough: once a test has failed it no longer watches, and asyncio may swallow its error."""
    known = item.config.pluginmanager.hasplugin("timeout")
    limit_s = float(item.config.getoption("timeout") or item.config.getini("timeout") or 0) if known else 0.0
    timer = threading.Timer(limit_s + LATER_S, _end_worker, [item])
    timer.daemon = True
    if limit_s:
        timer.start()
    try:
        return (yield)
    finally:
        timer.cancel()


def _end_worker(item: pytest.Item) -> None:
    found = stacks()
    if (capture := item.config.pluginmanager.getplugin("capturemanager")) is not None:
        capture.suspend_global_capture(in_=True)
    print(
        f"\nThe clean-up of {item.nodeid} hangs, so this process of pytest ends.\n{found}",
        file=sys.__stderr__,
        flush=True,
    )
    os._exit(1)
