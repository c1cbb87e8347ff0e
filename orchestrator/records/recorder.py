"""Writes `records.jsonl`, append-only, and tells whoever subscribes. Used from one thread."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from edgebed.errors import RunError
from orchestrator.records.reader import decode
from orchestrator.records.types import Fault, Record

_encode = msgspec.json.Encoder().encode


class Recorder:
    """One line per record, written at once and unbuffered: a killed orchestrator loses none.

    A line that an earlier crash tore off is removed when the file is opened again. One process at a time may write.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._subscribers: list[Callable[[Record], None]] = []
        try:
            self._file = path.open("ab", buffering=0)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _mend(path)
            self._file.seek(0, os.SEEK_END)
        except BlockingIOError:
            self._file.close()
            raise RunError(f"{path}: another orchestrator is writing", cure="wait for it, or end it") from None
        except OSError as error:
            raise self._failed(error) from None

    def record(self, record: Record) -> None:
        """Append one record. Raises RunError where it cannot be kept (disk full); nothing after `close`."""
        if self._file.closed:
            return  # what the fleet still says when the run is over
        self._append(_encode(record) + b"\n")
        for subscriber in tuple(self._subscribers):
            self._tell(subscriber, record)

    def subscribe(self, subscriber: Callable[[Record], None]) -> Callable[[], None]:
        """Call `subscriber` with every record from now on; returns what ends that."""
        self._subscribers.append(subscriber)
        return lambda: self._drop(subscriber)

    def close(self) -> None:
        """To be called once or more; the records are on the disk afterwards."""
        if not self._file.closed:
            os.fsync(self._file.fileno())
            self._file.close()

    def _append(self, line: bytes) -> None:
        start = self._file.tell()
        try:
            written = self._file.write(line)
            if written < len(line):  # a disk that is nearly full takes a part
                self._file.write(line[written:])
        except OSError as error:
            self._file.truncate(start)  # half a line must not damage what may still be written
            raise self._failed(error) from None

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

    def _failed(self, error: OSError) -> RunError:
        return RunError(f"{self._path}: cannot write records: {error.strerror}", cure="make room on the disk, resume")


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
