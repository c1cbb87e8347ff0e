"""Signals end work once, with its clean-up; further ones do not disturb that."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from edgebed.errors import RunError
from orchestrator.runs.signals import ENDING, ending_alike, run_to_end, without_interrupts


@pytest.fixture(autouse=True)
def as_in_a_shell() -> Iterator[None]:
    """Whoever started the tests may have made them ignore signals."""
    before = {each: signal.signal(each, signal.SIG_DFL) for each in ENDING}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.mark.parametrize("first", ENDING)
@pytest.mark.parametrize("then", [(), ENDING, (signal.SIGINT, signal.SIGINT)])
def test_work_is_cancelled_once_and_cleans_up_whatever_comes(
    first: signal.Signals, then: tuple[signal.Signals, ...]
) -> None:
    said, cleaned = list[str](), list[str]()
    heard = asyncio.Event()

    def notify(line: str) -> None:
        said.append(line)
        heard.set()

    async def work() -> None:
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), first)
        try:
            await asyncio.Event().wait()
        finally:
            for each in then:
                heard.clear()
                os.kill(os.getpid(), each)
                await heard.wait()
            cleaned.append("whole")

    with pytest.raises(KeyboardInterrupt):
        run_to_end(work(), notify)
    assert cleaned == ["whole"]
    assert said == [f"{first.name}: ending, and removing the fleet"] + [
        f"{each.name}: still removing the fleet" for each in then
    ]
    assert {signal.getsignal(each) for each in ENDING} == {signal.SIG_IGN}, "nothing disturbs what is said after it"


def test_a_signal_that_does_not_interrupt_the_wait_of_the_loop_ends_it() -> None:
    """As one that comes just before it: another thread takes it while the loop waits."""
    loop_thread, late = Path(f"/proc/self/task/{threading.get_native_id()}/wchan"), list[str]()

    def send() -> None:
        deadline = time.monotonic() + 5
        while "poll" not in loop_thread.read_text() and time.monotonic() < deadline:
            os.sched_yield()
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    async def work() -> None:
        threading.Thread(target=send).start()
        asyncio.get_running_loop().call_later(20, late.append, "the wait ended by itself")
        await asyncio.Event().wait()

    with pytest.raises(KeyboardInterrupt):
        run_to_end(work())
    assert late == []


def test_a_signal_that_comes_before_the_work_has_begun_ends_it_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the loop is made, no task is there that it could cancel."""

    def interrupted(main: Coroutine[Any, Any, object]) -> None:
        main.close()
        raise KeyboardInterrupt

    work = asyncio.sleep(0)
    monkeypatch.setattr(asyncio, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_to_end(work)
    work.close()
    assert signal.set_wakeup_fd(-1) == -1, "nothing of it stays"


def test_work_that_ends_by_itself_gives_its_result_and_its_errors() -> None:
    async def seven() -> int:
        return 7

    async def broken() -> None:
        raise ZeroDivisionError

    before = [signal.getsignal(each) for each in ENDING]
    assert run_to_end(seven()) == 7
    with pytest.raises(ZeroDivisionError):
        run_to_end(broken())
    assert [signal.getsignal(each) for each in ENDING] == before


def test_an_ignored_hang_up_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup

    async def work() -> int:
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0)
        return 7

    with ending_alike():
        assert run_to_end(work()) == 7
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


@pytest.mark.parametrize("number", ENDING)
def test_outside_of_a_loop_they_all_are_as_ctrl_c(number: signal.Signals) -> None:
    def told() -> None:
        with ending_alike():
            os.kill(os.getpid(), number)
            signal.sigtimedwait([signal.SIGUSR1], 5)

    with pytest.raises(KeyboardInterrupt):
        told()


CHILD = """
import asyncio, contextlib, sys
from pathlib import Path
from typing import Any
from orchestrator.cli.console import log
from orchestrator.cli.live import LiveWatch
from orchestrator.runs.signals import ending_alike, run_to_end

async def work():
    log.print("ready")
    try:
        while sys.argv[2] != "waits":
            log.print("at work")
            await asyncio.sleep(0)
        await asyncio.Event().wait()
    finally:
        log.print("said in the clean-up")
        await asyncio.sleep(0)
        Path(sys.argv[1]).write_text("whole")

try:
    with ending_alike(), LiveWatch(log) if "live" in sys.argv[2] else contextlib.nullcontext():
        run_to_end(work())
except KeyboardInterrupt:
    log.print("said at the end")
    sys.exit(130)
"""


@pytest.mark.parametrize("work", ["prints", "waits", "prints beside a live view"])
def test_a_terminal_that_goes_ends_the_work_with_all_its_clean_up(work: str, tmp_path: Path) -> None:
    """What a lost connection does: the kernel hangs up, and every write to the terminal fails from then on."""
    ours, theirs = pty.openpty()

    def take_terminal() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path / "cleaned"), work],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=take_terminal,
    )
    os.close(theirs)
    try:
        told = b""
        while b"ready" not in told:
            assert select.select([ours], [], [], 60)[0], told
            told += os.read(ours, 4096)
        os.close(ours)
        assert child.wait(60) == 130
    finally:
        child.kill()
    assert (tmp_path / "cleaned").read_text() == "whole"


HANGS = """
import asyncio, threading
from orchestrator.runs import signals
signals.CLOSE_S = 0.5

def wait_in_vain():
    threading.Event().wait()

async def work():
    asyncio.get_running_loop().run_in_executor(None, wait_in_vain)

signals.run_to_end(work())
"""


def test_a_thread_that_does_not_end_does_not_keep_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == RunError.exit_code
    assert "a task or thread of it has not ended (MainThread, asyncio_0" in done.stderr
    assert "in wait_in_vain" in done.stderr


def test_a_clean_up_is_not_interrupted_and_ctrl_c_works_again_afterwards() -> None:
    said = list[str]()
    with without_interrupts(said.append):
        for _ in range(3):
            signal.raise_signal(signal.SIGINT)
    assert said == ["SIGINT: still ending the run"] * 3
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_in_another_thread_signals_stay_as_they_are() -> None:
    def handler_inside() -> object:
        with without_interrupts():
            return signal.getsignal(signal.SIGINT)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(handler_inside).result() is signal.default_int_handler
