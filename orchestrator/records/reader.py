"""Reads `records.jsonl` back: every whole line is a record; a last line that a crash cut off is left out."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec

from edgebed.errors import UsageError
from orchestrator.records.types import Record

_decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


def beginning(kind: type[msgspec.Struct]) -> bytes:
    """How every line with a record of this type begins, which can be told without decoding it."""
    return f'{{"type":"{kind.__struct_config__.tag}"'.encode()


def read(path: Path) -> list[Record]:
    """All records of a file, in the order in which they were written.

    Raises:
        UsageError: there is no such file, or a line (other than an incomplete last one) is damaged.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", hint="give the folder of a run; it holds records.jsonl") from None
    whole, _, last = data.rpartition(b"\n")
    try:
        records: list[Record] = _decoder.decode_lines(whole)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        records = [record for number, line in enumerate(whole.split(b"\n"), 1) for record in _line(path, number, line)]
    tail = decode(last)
    return records if tail is None else [*records, tail]


def decode(line: bytes) -> Record | None:
    """One line as a record; None where the line is damaged."""
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _with_nan(line)


def _with_nan(line: bytes) -> Record | None:
    """JSON has no NaN: the loss of a diverged run is written as null, and read back as NaN."""
    if b"null" not in line:
        return None
    try:
        record: Record = msgspec.convert(_fill(json.loads(line)), Record)
    except (msgspec.ValidationError, ValueError, RecursionError):
        return None
    return record


def _fill(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _fill(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_fill(inner) for inner in value]
    return math.nan if value is None else value


def _line(path: Path, number: int, line: bytes) -> list[Record]:
    if not line.strip():
        return []
    record = decode(line)
    if record is None:
        raise UsageError(
            f"{path}:{number}: this line is no record: {line[:80]!r}",
            hint="the file was damaged or written by another version: remove that line, and everything after it if "
            "the run is to be resumed; or read it with the version that wrote it (CHANGELOG.md)",
        )
    return [record]
