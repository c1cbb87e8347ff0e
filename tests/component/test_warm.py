"""A program that finds torch loaded runs as one that `python` starts: its files, its end, its environment."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from tests import warm
from tests.waiting import until

SAYS = "import os, sys; print(sys.argv, os.getcwd(), sorted(os.environ), sys.stdin.read(), 'torch' in sys.modules)"


def python(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*warm.python(), *arguments], capture_output=True, text=True, timeout=60, **options)  # type: ignore[call-overload,no-any-return]


def test_it_has_the_arguments_the_folder_the_environment_and_the_input_of_its_client(tmp_path: Path) -> None:
    done = python("-c", SAYS, "a b", cwd=tmp_path, env={"ONLY": "1", "LC_ALL": "C.UTF-8"}, input="given")
    assert done.stdout == f"['-c', 'a b'] {tmp_path} ['LC_ALL', 'ONLY'] given True\n"


def test_modules_and_files_are_main_and_ours_are_not_loaded_before(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import sys; print(__name__, sys.argv[1:], 'orchestrator' in sys.modules)")
    for first in (["-m", "mine"], [str(tmp_path / "mine.py")]):
        assert python(*first, "x", cwd=tmp_path).stdout == "__main__ ['x'] False\n"


@pytest.mark.parametrize(
    ("code", "wanted"),
    [("pass", 0), ("exit(7)", 7), ("raise ValueError('no')", 1), ("import os; os.kill(os.getpid(), 9)", -9)],
)
def test_it_ends_as_its_program_ends(code: str, wanted: int) -> None:
    done = python("-c", code)
    assert done.returncode == wanted
    assert ("ValueError: no" in done.stderr) == (wanted == 1)


async def test_a_program_whose_client_is_killed_is_killed() -> None:
    command = [*warm.python(), "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(1000)"]
    client = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert client.stdout is not None
    program = psutil.Process(int(await client.stdout.readline()))
    client.terminate()
    await until(lambda: not program.is_running() or program.status() == psutil.STATUS_ZOMBIE)
    assert await client.wait() == -signal.SIGTERM
