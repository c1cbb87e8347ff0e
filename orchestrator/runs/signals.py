"""Ends a command on Ctrl-C (SIGINT), SIGTERM or SIGHUP (closed terminal) in the same way: once, with its clean-up. A
command whose work is done ends in time."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import faulthandler
import io
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from edgebed.errors import RunError

T = TypeVar("T")
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

CLOSE_S = 120.0
"""Seconds in which the event loop of a work that is done must have closed, with its last tasks and worker threads."""


def _tell(line: str) -> None:
    print(line, file=sys.stderr)


@contextlib.contextmanager
def ending_alike() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does. Ignored signals (`nohup`) stay ignored. It is
    for whole commands: a live view that began earlier would hold the streams as they were."""
    _outlive_terminals()
    before = {each: signal.getsignal(each) for each in ENDING if signal.getsignal(each) is signal.SIG_DFL}
    for each in before:
        signal.signal(each, signal.default_int_handler)
    try:
        yield
    finally:
        for each, handler in before.items():
            if signal.getsignal(each) is not signal.SIG_IGN:
                signal.signal(each, handler)


@contextlib.contextmanager
def without_interrupts(notify: Callable[[str], None] = _tell) -> Iterator[None]:
    """Inside, Ctrl-C is answered with a line and nothing else, so that a clean-up comes to its end. In a thread other
    than the main one, to which Python gives no signals, nothing is changed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda *_: notify("SIGINT: still ending the run"))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)


def run_to_end(work: Coroutine[Any, Any, T], notify: Callable[[str], None] = _tell) -> T:
    """Run `work`. The first signal cancels it; later ones disturb neither its clean-up nor the messages after it.

    A worker thread that does not end would keep the process for ever, so the process is ended then, with the threads'
    stacks and the exit code of a RunError. Raises KeyboardInterrupt: a signal has ended the work, and it has cleaned
    up.
    """
    end = _End(notify)
    late = threading.Timer(CLOSE_S, _leave)
    late.daemon = True
    try:
        return asyncio.run(_until_signal(work, end, late))
    except _Interrupted:
        raise KeyboardInterrupt from None
    finally:
        late.cancel()
        end.restore()


class _Interrupted(Exception):
    """A signal has ended the work."""


async def _until_signal(work: Coroutine[Any, Any, T], end: _End, late: threading.Timer) -> T:
    task = asyncio.ensure_future(work)
    end.watch(task)
    try:
        return await task
    except asyncio.CancelledError:
        raise _Interrupted from None
    finally:
        late.start()


def _leave() -> None:
    """Called in a thread of its own, when the others do not end."""
    names = ", ".join(each.name for each in threading.enumerate() if not each.daemon)
    _tell(f"edgebed: the work is done, but after {CLOSE_S:.0f} s a task or thread of it has not ended ({names})")
    _tell("Hint: what was measured is in the folder of the run; `edgebed compare RUN` prints it. The stacks are:")
    with contextlib.suppress(Exception):  # nothing to write to
        faulthandler.dump_traceback(sys.stderr)
    os._exit(RunError.exit_code)


class _End:
    """Cancels the work once. Its handlers stay until `restore`, so that no signal kills the process meanwhile."""

    def __init__(self, notify: Callable[[str], None]) -> None:
        self._notify = notify
        self._ending = False
        self._before = {each: signal.getsignal(each) for each in ENDING}
        # A signal that comes just before the loop waits does not end its wait; this does.
        self._woken, self._wake = socket.socketpair()
        for end in (self._woken, self._wake):
            end.setblocking(False)
        self._woke_before = signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)

    def watch(self, task: asyncio.Future[Any]) -> None:
        """From now on signals end `task`."""
        self._task, self._loop = task, asyncio.get_running_loop()
        self._loop.add_reader(self._woken, self._woken.recv, 4096)
        for each, handler in self._before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(each, self._heard)

    def restore(self) -> None:
        for each, handler in self._before.items():
            signal.signal(each, signal.SIG_IGN if self._ending else handler)
        signal.set_wakeup_fd(self._woke_before)
        for end in (self._woken, self._wake):
            end.close()

    def _heard(self, number: int, frame: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the work has ended
            self._loop.call_soon_threadsafe(self._signalled, signal.Signals(number))

    def _signalled(self, number: signal.Signals) -> None:
        if self._ending:
            self._notify(f"{number.name}: still removing the fleet")
            return
        self._ending = True
        self._task.cancel()  # first, in case the message fails
        self._notify(f"{number.name}: ending, and removing the fleet")


def _outlive_terminals() -> None:
    """From now on what is printed to a terminal that has closed goes nowhere. Writes fail before the signal is heard,
    and an error would end the clean-up in its middle."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and stream.isatty():
            stream.flush()
            raw, at_once = _Terminal(stream.fileno(), "w", closefd=False), stream.write_through
            buffer: Any = raw if at_once else io.BufferedWriter(raw)
            text = io.TextIOWrapper(buffer, stream.encoding, stream.errors, None, True, at_once)
            setattr(sys, name, text)


class _Terminal(io.FileIO):
    """A terminal, until it closes."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return memoryview(data).nbytes
