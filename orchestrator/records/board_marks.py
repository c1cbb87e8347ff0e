"""What slows a board down, or was changed on it, and from when to when, as its sensors tell it. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from edgebed.wire.reading import BoardReading

PI_BITS = ("under_voltage", "frequency_cap", "throttled", "heat")
"""What bits 0 to 3 of the Raspberry Pi's `get_throttled` say of now."""

SETTINGS = ("power_mode", "governor")
"""Fields of a reading that tell a setting where it is another one than when the agent started."""

MARKS = (*PI_BITS, *SETTINGS)

HOLD_NS = 60_000_000_000
"""A board that swings around its limit is slowed down all the time: pauses up to this length do not count."""


class Slowed(msgspec.Struct, array_like=True):
    """`mark`, of MARKS, held for a board from the first reading that said so to the last."""

    mark: str
    begin_ns: int
    end_ns: int


class BoardMark(msgspec.Struct, frozen=True, tag="board_mark"):
    """A mark, of MARKS, began. Made from readings; it stands in no file of records. `setting`: what it is now, for a
    mark of SETTINGS."""

    at_ns: int
    device: str
    mark: str
    setting: str = ""


def marks_of(reading: BoardReading) -> tuple[str, ...] | None:
    """What slows the board down at this moment, or was changed on it; None where no source tells."""
    changed = {name for name in SETTINGS if getattr(reading, name) is not None}
    if reading.throttled is None and reading.cap is None and reading.hot is None and not changed:
        return None
    bits = reading.throttled or 0
    found = changed | {name for bit, name in enumerate(PI_BITS) if bits >> bit & 1}
    if reading.cap is not None and reading.cap < 1:
        found.add("frequency_cap")
    if reading.hot:
        found.add("heat")
    return tuple(name for name in MARKS if name in found)


def extend(slowed: list[Slowed], marks: Iterable[str], at_ns: int) -> list[str]:
    """Take in what a reading says. Returns the marks that begin with it."""
    begun = []
    for mark in marks:
        last = next((each for each in reversed(slowed) if each.mark == mark), None)
        if last is not None and at_ns - last.end_ns <= HOLD_NS:
            last.end_ns = max(last.end_ns, at_ns)
        else:
            slowed.append(Slowed(mark, at_ns, at_ns))
            begun.append(mark)
    return begun
