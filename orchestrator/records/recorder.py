"""Writes `records.jsonl`, append-only, and hands every record to subscribers. Used from one thread."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from edgebed.errors import FileError, RunError, UsageError
from orchestrator.files.shared_lock import try_lock
from orchestrator.records.reader import decode
from orchestrator.records.types import Fault, Record

_encode = msgspec.json.Encoder().encode
T = TypeVar("T")


class Recorder:
    """One line per record, written at once without a buffer, so that a killed orchestrator loses none.

    A line that an earlier crash cut off is removed when the file is opened again. One process at a time may write.

    Args:
        keep: bytes of the file that stand, of a run that goes on to the same records; None: all.
        again: place in them from which records that are written again are not appended.

    Attributes:
        failure: why a record could not be written (disk full). After it only the last record is tried. Records are
            written in many callbacks, so the error is not raised there: `guard` ends the run.
    """

    def __init__(self, path: Path, keep: int | None = None, again: int = 0) -> None:
        self._path = path
        self.failure: FileError | None = None
        self._on_failure: Callable[[], object] = lambda: None
        self._subscribers: list[Callable[[Record], None]] = []
        try:
            self._file = path.open("ab", buffering=0)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if keep is not None and not 0 <= keep <= path.stat().st_size:
                self._file.close()
                raise UsageError(f"{path} is shorter than the {keep} bytes that were saved", hint="run it anew")
            _mend(path) if keep is None else self._file.truncate(keep)
            self._written = Counter(path.read_bytes()[again:].splitlines(True) if again else ())
            self._file.seek(0, os.SEEK_END)
        except BlockingIOError:
            self._file.close()
            raise RunError(f"{path}: another orchestrator is writing", hint="wait for it, or end it") from None
        except OSError as error:
            raise FileError.of(error, path) from None

    def record(self, record: Record) -> None:
        """Append one record; does nothing after `close`, or after one could not be written."""
        if self._file.closed or self.failure is not None:
            return  # the fleet may still report when the run is over
        line = _encode(record) + b"\n"
        try:
            if self._written[line]:
                self._written[line] -= 1
            else:
                self._append(line)
        except OSError as error:
            self._fail(error)
            return
        for subscriber in tuple(self._subscribers):
            self._tell(subscriber, record)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._file.tell()

    def last(self, record: Record) -> None:
        """Append the last record, also after one could not be written: a short line may fit."""
        if self.failure is None:
            self.record(record)
            return
        with contextlib.suppress(OSError):
            self._append(_encode(record) + b"\n")

    async def guard(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work`. Raises FileError, with `work` cancelled and ended, once a record cannot be written."""
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
        """Call `subscriber` with every record from now on; returns a function that ends that."""
        self._subscribers.append(subscriber)
        return lambda: self._drop(subscriber)

    def sync(self) -> None:
        """Write all records so far to the disk. Raises FileError where that fails."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise FileError.of(error, self._path) from None

    def close(self) -> None:
        """Write all records to the disk and close the file; may be called again. A failure is in `failure`."""
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
        """Hand a record to the subscribers. One that fails is removed, which is recorded: it must not end the run."""
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
        return not try_lock(file, fcntl.LOCK_SH)


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
