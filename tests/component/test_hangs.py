"""A test that hangs is ended, and its report tells where it and its processes were."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pytest_timeout")

from tests.hangs import run

ROOT = Path(__file__).parents[2]
HANGS = """
import subprocess, sys

def wait_in_vain():
    subprocess.run([sys.executable, "-c", "import time; time.sleep(1000)"], capture_output=True)

def test_hangs():
    wait_in_vain()

def test_goes_on():
    pass
"""


def test_a_test_that_hangs_fails_and_tells_where_its_processes_are(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(HANGS)
    options = ["--timeout=4", "-p", "tests.hangs", "-p", "no:cacheprovider", "-c", "/dev/null", f"--rootdir={tmp_path}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "1 failed, 1 passed" in done.stdout
    assert "This test hangs" in done.stdout
    assert "in wait_in_vain" in done.stdout
    assert "time.sleep(1000)" in done.stdout  # the command line of the process


HANGS_AT_ITS_END = """
import pytest, tests.hangs, threading

tests.hangs.LATER_S = 2.0

@pytest.fixture
def without_end():
    yield
    threading.Event().wait()

def test_fails(without_end):
    raise AssertionError("so its limit is no longer watched")

def test_goes_on():
    pass
"""


def test_a_clean_up_that_hangs_ends_its_worker_and_the_others_tests_go_on(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(HANGS_AT_ITS_END)
    options = ["--timeout=4", "-n", "1", "-p", "tests.hangs", "-p", "no:cacheprovider", "-c", "/dev/null"]
    done = run([sys.executable, "-m", "pytest", *options, f"--rootdir={tmp_path}", str(tmp_path)], cwd=ROOT)
    assert "1 passed" in done.stdout
    assert "crashed while running" in done.stdout
    assert "without_end (" in done.stderr  # in the stack of the process


SAYS_AND_WAITS = "import sys, time; print('began', flush=True); print('trouble', file=sys.stderr); time.sleep(1000)"


def test_a_command_that_does_not_end_is_killed_and_its_words_and_its_stack_are_told() -> None:
    with pytest.raises(AssertionError, match=r"no end of `.*` within 3 s\nbegan\n") as told:
        run([sys.executable, "-c", SAYS_AND_WAITS], 3)
    assert "standard error: trouble" in str(told.value)
    assert "waits in the kernel" in str(told.value)
