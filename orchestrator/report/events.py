"""Events of the Chrome trace format, as they are written. Times are whole microseconds: the viewers cut fractions off,
and two slices that only touch would overlap."""

from __future__ import annotations

from typing import Any

import msgspec


class Slice(msgspec.Struct, gc=False):
    """Something that lasted. `cat`: round, task, phase, link or server."""

    name: str
    cat: str
    ts: int
    dur: int
    pid: int
    tid: int
    args: dict[str, Any] = {}
    ph: str = "X"


class Arrow(msgspec.Struct, gc=False):
    """One end of an arrow (`ph` s: from, f: to), fixed to the slice that encloses it."""

    ph: str
    ts: int
    pid: int
    tid: int
    id: int
    name: str = "features"
    cat: str = "upload"
    bp: str = "e"


class Counter(msgspec.Struct, gc=False):
    """The value of a curve from `ts` on."""

    name: str
    ts: int
    pid: int
    args: dict[str, float]
    tid: int = 0
    ph: str = "C"


class Name(msgspec.Struct, gc=False):
    """How a process or thread is called, and where it is put."""

    name: str
    pid: int
    tid: int
    args: dict[str, Any]
    ph: str = "M"


Event = Slice | Arrow | Counter | Name
