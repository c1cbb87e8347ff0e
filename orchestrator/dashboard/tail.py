"""Follows one `records.jsonl` as it grows, and keeps the state made from it in `view.msgpack` beside it.

To open a long run, that index is read, and only the records after it. Where it is missing, of another version, or not
of these records, all records are read again. It is written when a run ends (`refresh`) and after much was read.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

import msgspec

from orchestrator.files.output import replace
from orchestrator.records.live.reducer import Rewound, reduce
from orchestrator.records.live.run_state import EVER, VERSION, RunState
from orchestrator.records.reader import beginning, decode
from orchestrator.records.types import CutProfiled, Record

BLOCK = 4 << 20
"""Bytes taken in at a time: between two blocks a server can answer."""

WORTH = 8 << 20
"""The index is written again after so many bytes."""

PROOF = 512
"""Bytes before the offset, and at the start of the file, whose digest ties an index to its records."""

NEEDLESS = (beginning(CutProfiled),)
"""Lines that the state does not need; they are not decoded."""


class Index(msgspec.Struct):
    """The state after the first `offset` bytes of the records."""

    version: int
    offset: int
    proof: bytes
    state: msgspec.Raw


class RecordTail:
    """The state of one run, as far as its records have been read. Used by one thread at a time.

    Attributes:
        state: what is known of the first `offset` bytes.
        damaged: number of lines that were no records; they are left out.
    """

    def __init__(self, folder: Path) -> None:
        self.path, self.index = folder / "records.jsonl", folder / "view.msgpack"
        self.state, self.offset, self.damaged = RunState(), 0, 0
        self._saved = 0
        self._load()

    def pending(self) -> int:
        """Bytes that have not been read yet; a file that became shorter is read again from its start."""
        try:
            size = self.path.stat().st_size
        except OSError:
            return 0
        if size < self.offset:
            self.state, self.offset, self._saved = RunState(epoch=self.state.epoch + 1), 0, 0
        return size - self.offset

    def step(self, limit: int = BLOCK) -> bool:
        """Take in up to `limit` bytes of whole lines; whether there were any."""
        if self.pending() <= 0:
            return False
        with self.path.open("rb") as file:
            file.seek(self.offset)
            block = file.read(limit)
            while b"\n" not in block and (more := file.read(limit)):
                block += more
        whole, newline, _ = block.rpartition(b"\n")
        if not newline:
            return False
        try:
            reduce(self.state, self._decoded(whole, self.offset))
        except Rewound:
            self.state, self.offset = RunState(epoch=self.state.epoch + 1, patience=EVER), 0
            return True
        self.offset += len(whole) + 1
        return True

    def catch_up(self) -> None:
        """Take in all there is, and write the index where that was much."""
        while self.step():
            pass
        if self.offset - self._saved > WORTH:
            self.save()

    def _decoded(self, block: bytes, offset: int) -> list[tuple[int, Record]]:
        found = []
        for line in block.split(b"\n"):
            if not line.startswith(NEEDLESS) and line:
                record = decode(line)
                if record is None:
                    self.damaged += 1
                else:
                    found.append((offset, record))
            offset += len(line) + 1
        return found

    def slice(self, start: int, end: int | None, limit: int) -> list[Record]:
        """The records between two offsets, at most `limit` bytes of them."""
        with self.path.open("rb") as file:
            file.seek(start)
            block = file.read(limit if end is None else min(limit, end - start))
        return [r for line in block[: block.rfind(b"\n") + 1].splitlines() if (r := decode(line)) is not None]

    # ---- the index ----

    def _load(self) -> None:
        try:
            index = msgspec.msgpack.decode(self.index.read_bytes(), type=Index)
            if index.version != VERSION or index.proof != self._proof(index.offset):
                return
            self.state = msgspec.msgpack.decode(index.state, type=RunState)
            self.offset = self._saved = index.offset
        except (OSError, ValueError, OverflowError):  # none, torn, or with an offset that no file has
            return

    def save(self) -> None:
        """Write the index to another file and rename that. A folder that cannot be written to, or a number that it does
        not hold, costs only time."""
        with contextlib.suppress(OSError, OverflowError):
            state = msgspec.Raw(msgspec.msgpack.encode(self.state))
            index = Index(VERSION, self.offset, self._proof(self.offset), state)
            replace(self.index, msgspec.msgpack.encode(index))
        self._saved = self.offset

    def _proof(self, offset: int) -> bytes:
        with self.path.open("rb") as file:
            head = file.read(min(PROOF, offset))
            file.seek(max(0, offset - PROOF))
            tail = file.read(min(PROOF, offset))
        return hashlib.sha256(b"%d:" % offset + head + tail).digest()


def refresh(folder: Path) -> None:
    """Bring the index of a run up to date. It only saves time: an error here must not harm a run."""
    with contextlib.suppress(Exception):
        tail = RecordTail(folder)
        if tail.step():
            tail.catch_up()
            tail.save()
