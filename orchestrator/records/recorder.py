"""Writes `records.jsonl`, append-only, and tells whoever subscribes. Used from one thread."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from edgebed.errors import FileError, RunError
from orchestrator.records.reader import decode
from orchestrator.records.types import Fault, Record

_encode = msgspec.json.Encoder().encode
T = TypeVar("T")


class Recorder:
    """One line per record, written at once and unbuffered: a killed orchestrator loses none.

    A line that an earlier crash tore off is removed when the file is opened again. One process at a time may write.

    Attributes:
        failure: why a record could not be kept (disk full); nothing but the last record is tried after it. What records
            goes on in many callbacks, so it is not raised there: `guard` ends the run.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.failure: FileError | None = None
        self._on_failure: Callable[[], object] = lambda: None
        self._subscribers: list[Callable[[Record], None]] = []
        try:
            self._file = path.open("ab", buffering=0)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _mend(path)
            self._file.seek(0, os.SEEK_END)
        except BlockingIOError:
            self._file.close()
            raise RunError(f"{path}: another orchestrator is writing", hint="wait for it, or end it") from None
        except OSError as error:
            raise FileError.of(error, path) from None

    def record(self, record: Record) -> None:
        """Append one record; none after `close`, or after one could not be kept."""
        if self._file.closed or self.failure is not None:
            return  # what the fleet still says when the run is over
        try:
            self._append(_encode(record) + b"\n")
        except OSError as error:
            self._fail(error)
            return
        for subscriber in tuple(self._subscribers):
            self._tell(subscriber, record)

    def last(self, record: Record) -> None:
        """Append the last record. It is tried even where an earlier one could not be kept: a short line may fit."""
        if self.failure is None:
            self.record(record)
            return
        with contextlib.suppress(OSError):
            self._append(_encode(record) + b"\n")

    async def guard(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work`. Raises FileError, with `work` cancelled and ended, once a record cannot be kept."""
        task = asyncio.ensure_future(work)
        self._on_failure = task.cancel
        try:
            if self.failure is not None:
                task.cancel()
            return await task
        except asyncio.CancelledError:
            if self.failure is not None:
                raise self.failure from None
            raise
        finally:
            self._on_failure = lambda: None

    def subscribe(self, subscriber: Callable[[Record], None]) -> Callable[[], None]:
        """Call `subscriber` with every record from now on; returns what ends that."""
        self._subscribers.append(subscriber)
        return lambda: self._drop(subscriber)

    def sync(self) -> None:
        """Have all records so far on the disk. Raises FileError where that fails."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise FileError.of(error, self._path) from None

    def close(self) -> None:
        """To be called once or more; the records are on the disk afterwards. A failure is in `failure`."""
        if not self._file.closed:
            try:
                self.sync()
            except FileError as error:
                self.failure = self.failure or error
            finally:
                self._file.close()

    def _append(self, line: bytes) -> None:
        start = self._file.tell()
        try:
            written = self._file.write(line)
            if written < len(line):  # a disk that is nearly full takes a part
                self._file.write(line[written:])
        except OSError:
            self._file.truncate(start)  # half a line must not damage what may still be written
            raise

    def _fail(self, error: OSError) -> None:
        self.failure = FileError.of(error, self._path)
        self._on_failure()

    def _tell(self, subscriber: Callable[[Record], None], record: Record) -> None:
        """A page that cannot be drawn must not end a run: a subscriber that fails is let go, and that is recorded."""
        try:
            subscriber(record)
        except Exception as error:
            self._drop(subscriber)
            what = f"a reader of the records failed and is told no more: {error!r}"
            self.record(Fault(time.monotonic_ns(), "", what))

    def _drop(self, subscriber: Callable[[Record], None]) -> None:
        if subscriber in self._subscribers:
            self._subscribers.remove(subscriber)


def is_being_written(path: Path) -> bool:
    """Whether an orchestrator has these records open to write. Raises OSError where they cannot be read."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _mend(path: Path) -> None:
    """End the file with a whole line: complete the last one if only its newline is missing, else cut it off."""
    if not path.exists() or not path.stat().st_size:
        return
    with path.open("rb+") as file:
        whole, newline, last = file.read().rpartition(b"\n")
        if not last:
            return
        if decode(last) is not None:
            file.write(b"\n")
        else:
            file.truncate(len(whole) + len(newline))
