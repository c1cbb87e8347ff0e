"""Computes many cells, several at a time, each in a process of its own with one thread.

The processes are stopped while something is timed on this host (`files.timed_host`). The kernel ends them when this
process ends, however it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from edgebed.limits.shell import last_line
from edgebed.module_process import module_command
from orchestrator.files.shared_lock import try_lock
from orchestrator.files.timed_host import computing, is_timed
from orchestrator.papers.compute import RoundDone, WorkerRequest
from orchestrator.records.words.formatting import accuracy

LOOK_S = 0.2
"""Seconds between two looks whether something is timed."""

TELL_S = 60.0
"""Seconds between two lines of progress."""

LOCK = "lock"
"""The file of a folder that the process which computes there holds."""

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


class Task(msgspec.Struct, frozen=True):
    """A cell to compute, and its name for people."""

    name: str
    request: WorkerRequest
    anew: bool = False  # what is in its folder is of another run


class Workers:
    """Computes the cells of a list. `most`: processes at a time."""

    def __init__(self, tasks: Sequence[Task], most: int, notify: Callable[[str], None]) -> None:
        self._tasks, self._notify = tasks, notify
        self._room = asyncio.Semaphore(most)
        self._most = most
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._rounds: dict[str, RoundDone] = {}
        self._began_s: dict[str, float] = {}
        self._took_s: list[float] = []
        self._ended = 0

    async def run(self) -> list[str]:
        """Compute all; returns a line for each that failed. Raises FleetError where the host cannot be locked."""
        is_timed()
        minding = asyncio.create_task(self._mind())
        telling = asyncio.create_task(self._tell())
        try:
            found = await asyncio.gather(*(self._one(task) for task in self._tasks))
        finally:
            for each in (minding, telling):
                each.cancel()
            await asyncio.gather(minding, telling, return_exceptions=True)
        return [line for line in found if line]

    async def _one(self, task: Task) -> str:
        async with self._room:
            self._began_s[task.name] = time.monotonic()
            mine = True
            try:
                with own(Path(task.request.work), anew=task.anew) as mine:
                    why = await self._process(task) if mine else "another process computes it"
            except OSError as error:
                why = str(error)
            took_s = time.monotonic() - self._began_s.pop(task.name)
        self._rounds.pop(task.name, None)
        if not why:
            self._took_s.append(took_s)
        if mine:
            self._ended += 1
            self._notify(f"{self._ended} of {len(self._tasks)}: {task.name}{f': {why}' if why else ''}{self._left()}")
        return f"{task.name}: {why}" if why else ""

    async def _process(self, task: Task) -> str:
        """Run a worker's process to its end; returns why it failed, or ""."""
        log = Path(task.request.work) / "log.txt"
        log.unlink(missing_ok=True)
        with log.open("xb") as err:  # neither through a link nor to a pipe
            async with _started(task.request, err.fileno()) as process:
                self._running[task.name] = process
                try:
                    assert process.stdout is not None
                    async for line in process.stdout:
                        self._rounds[task.name] = msgspec.json.decode(line, type=RoundDone)
                    code = await process.wait()
                finally:
                    del self._running[task.name]
        return (
            "" if code == 0 else f"ended with {code}: {last_line(log) or 'no message; was it killed for its memory?'}"
        )

    # ---- progress ----

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(TELL_S)
            for name, done in sorted(self._rounds.items()):
                self._notify(f"  {name}: round {done.round} of {done.rounds}, {accuracy(done.accuracy)}")
            self._notify(f"  {self._ended} of {len(self._tasks)} cells{self._left()}")

    def _left(self) -> str:
        """The time left, at the speed so far, if no run reaches its target before its last round."""
        left_s = self.seconds_left()
        return "" if left_s is None or left_s <= 0 else f"; at most {left_s / 3600:.2g} h left"

    def seconds_left(self) -> float | None:
        """None: nothing is known yet."""
        now_s = time.monotonic()
        whole = {
            name: (now_s - self._began_s[name]) * done.rounds / done.round
            for name, done in self._rounds.items()
            if name in self._began_s
        }
        known = [*self._took_s, *whole.values()]
        if not known:
            return None
        begun = sum(max(0.0, seconds - (now_s - self._began_s[name])) for name, seconds in whole.items())
        waiting = len(self._tasks) - self._ended - len(whole)
        return (begun + waiting * sum(known) / len(known)) / self._most

    # ---- what is timed ----

    async def _mind(self) -> None:
        """Stop the processes while something is timed on this host."""
        while True:
            with computing():
                _signal(self._running.values(), signal.SIGCONT)
                while not is_timed():  # noqa: ASYNC110 - another process decides
                    await asyncio.sleep(LOOK_S)
                stop(self._running.values())
            self._notify("  paused: something is timed on this host")
            while is_timed():
                stop(self._running.values())  # those that started meanwhile
                await asyncio.sleep(LOOK_S)
            self._notify("  going on")


def stop(processes: Iterable[asyncio.subprocess.Process]) -> None:
    """Stop children of this process; returns when none of them runs any more."""
    _signal(processes, signal.SIGSTOP)
    for process in processes:
        with contextlib.suppress(ChildProcessError):  # it has ended
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


def _signal(processes: Iterable[asyncio.subprocess.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)


@contextlib.asynccontextmanager
async def _started(request: WorkerRequest, err: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """A worker's process, which is killed if it has not ended: its cell goes on at the next start."""
    process = await asyncio.create_subprocess_exec(
        *module_command("orchestrator.papers.compute", msgspec.json.encode(request).decode()),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=err,
        env={**os.environ, **ONE_THREAD},
        start_new_session=True,  # Ctrl-C is for this process, which then ends it
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@contextlib.contextmanager
def own(work: Path, *, anew: bool) -> Iterator[bool]:
    """Whether no other process computes in this folder. It is ours inside. `anew`: it is emptied then."""
    work.mkdir(parents=True, exist_ok=True)
    # neither through a link nor waiting for a pipe
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(work / LOCK, flags, 0o644), "rb") as file:
        mine = try_lock(file)
        for each in work.iterdir() if mine and anew else ():
            if each.is_dir() and not each.is_symlink():
                shutil.rmtree(each)
            elif each.name != LOCK:
                each.unlink()
        yield mine
