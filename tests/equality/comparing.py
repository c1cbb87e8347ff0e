"""What differs between two recordings, by run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.equality import normal

SHOWN = 12
"""Differences shown of one run; the others are counted."""


def compare(a: Path, b: Path, ignored: Sequence[str] = ()) -> int:
    """Print one line per run and its differences; the number of runs that differ or that only one side has.

    Args:
        ignored: places that may differ, as they are printed, without numbers: `records.round_started.notes`.
    """
    names = sorted({file.relative_to(side) for side in (a, b) for file in side.rglob("*.json")})
    if not names:
        raise SystemExit(f"{a} and {b} hold no recordings: record first")
    differing = sum(_run(a / name, b / name, str(name.with_suffix("")), ignored) for name in names)
    print(f"{len(names) - differing} of {len(names)} recordings are equal to the bit")
    return differing


def _run(a: Path, b: Path, name: str, ignored: Sequence[str]) -> bool:
    """Print the line of one run; whether it differs."""
    missing = [path for path in (a, b) if not path.exists()]
    if missing:
        print(f"  MISSING  {name}: {missing[0]}")
        return True
    left, right = (json.loads(path.read_text()) for path in (a, b))
    found = [each for each in differences(left, right) if not unnumbered(each[0]).startswith(tuple(ignored))]
    print(f"  {'DIFFERS' if found else 'equal  '}  {name}{_size(left)}")
    for place, text in found[:SHOWN]:
        print(f"             {place}: {text}")
    if len(found) > SHOWN:
        print(f"             and {len(found) - SHOWN} more")
    return bool(found)


def unnumbered(place: str) -> str:
    """A place without numbers of entries: `records.round_started.notes` for `records.round_started[7].notes`."""
    return re.sub(r"\[\d+\]", "", place)


def differences(a: Any, b: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Place and text of every difference. A type that differs (1 and 1.0) is one."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted(a.keys() | b.keys()):
            inner = f"{place}.{key}".strip(".")
            if key not in a or key not in b:
                yield inner, "only in the second" if key not in a else "only in the first"
            else:
                yield from differences(a[key], b[key], inner)
    elif isinstance(a, list) and isinstance(b, list):
        if len(a) != len(b):
            yield place, f"{len(a)} entries, then {len(b)}"
        for i, (left, right) in enumerate(zip(a, b, strict=False)):
            yield from differences(left, right, _entry(place, i, left))
    elif type(a) is not type(b) or (a != b and not _same_frames(a, b, place)):
        yield place, f"{_short(a)}, then {_short(b)}"


def _same_frames(a: Any, b: Any, place: str) -> bool:
    """Whether these are bytes of one transfer's frames in a real run, but for what timing decides of them."""
    return isinstance(a, int) and bool(normal.FRAMES.match(place)) and abs(a - b) <= normal.PREDECESSOR_BYTES


def _entry(place: str, i: int, value: Any) -> str:
    """A record's place carries its type: `records.round_started[7]`."""
    kind = f".{value['type']}" if place == "records" and isinstance(value, dict) else ""
    return f"{place}{kind}[{i}]"


def _size(recording: Any) -> str:
    """What was compared, in words."""
    if "weights" not in recording:
        return ""
    records = f", {len(recording['records'])} records" if "records" in recording else ""
    return f" ({len(recording['weights'])} tensors{records})"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 70 else f"{text[:67]}..."
