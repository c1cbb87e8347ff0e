"""Every error Edgebed raises on purpose, as one tree.

    EdgebedError
    ├── UsageError            what the user wrote cannot be done: file, place, hint
    │   ├── PluginError       an unknown plugin name or option
    │   └── Mistakes          several of these in one file
    ├── WireError             bytes that are not a valid message, frame or chunk
    ├── LinkError             the broker cannot be reached or refuses us
    │   └── TransferError     one transfer cannot be finished
    │       └── TransferRefused   the receiver said no; carries its reason
    ├── FleetError            a device or backend cannot be started, limited or stopped
    │   ├── LimitError        a limit could not be set, or does not read back
    │   └── CapacityError     the fleet wants more than the host has
    ├── CalibrationError      the measured limits are not the requested ones
    ├── FileError             a file or folder cannot be read or written: full, read-only, missing
    └── RunError              a run cannot go on
        └── DivergedError     training gave a loss or weight that is not finite

`exit_code` is what the command line returns for the error (docs/cli.md has the table).
"""

from __future__ import annotations

import errno
import os
import re
import sys
import traceback
from collections.abc import Sequence

MOST_SAID = 20_000
"""Characters of an error that a terminal shows."""

MOST_TRACE = 8000
"""Characters of a traceback that are sent and kept."""


class EdgebedError(Exception):
    """Base of all. `hint` says what the reader can do; it is printed below the message."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(EdgebedError):
    exit_code = 2


class PluginError(UsageError):
    pass


class Mistakes(UsageError):
    """Several mistakes in what a user wrote, each with its place and cure."""

    def __init__(self, about: object, each: Sequence[UsageError]) -> None:
        lines = (
            f"\n{i}. {error}" + (f"\n   Hint: {error.hint}" if error.hint else "") for i, error in enumerate(each, 1)
        )
        super().__init__(
            f"{about}: {counted(len(each), 'mistake')}{''.join(lines)}", hint=f"`edgebed check {about}` looks again"
        )
        self.each = each


def refuse(found: Sequence[UsageError], about: object) -> None:
    """Raise the only mistake, or all together in the order of their lines; nothing where there is none. `about`: the
    file."""
    each = [one for error in found for one in (error.each if isinstance(error, Mistakes) else (error,))]
    if each:
        raise each[0] if len(each) == 1 else Mistakes(about, sorted(each, key=_line))


def _line(error: UsageError) -> int:
    """Of the file; after the last where it names none."""
    found = re.match(r"\S+?:(\d+)\b", str(error))
    return int(found[1]) if found else sys.maxsize


class WireError(EdgebedError):
    pass


class LinkError(EdgebedError):
    exit_code = 4


class TransferError(LinkError):
    pass


class TransferRefused(TransferError):
    pass


class FleetError(EdgebedError):
    exit_code = 3


class LimitError(FleetError):
    pass


class CapacityError(FleetError):
    pass


class CalibrationError(EdgebedError):
    exit_code = 1


class FileError(EdgebedError):
    """A file or folder cannot be read or written."""

    exit_code = 6

    @classmethod
    def of(cls, error: OSError, path: str | os.PathLike[str] | None = None) -> FileError:
        """What the operating system refused: the place, the cause and the hint. `path`: the place, where `error` does
        not name it."""
        place = path or error.filename or ""
        cause = error.strerror or str(error) or type(error).__name__
        hint = FILE_HINTS.get(error.errno or 0, "see whether this place can be read and written, then try again")
        return cls(f"{os.fspath(place)}: {cause}" if place else cause, hint=hint)


_FULL = "make room on that disk, or name a place on another one (runs are kept in the folder that EDGEBED_RUNS names)"
_FORBIDDEN = "name a place that you may write to (EDGEBED_RUNS for runs), or change the owner of this one"
FILE_HINTS = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EROFS: "this file system is read-only: name a place on another one (EDGEBED_RUNS for runs)",
    errno.EACCES: _FORBIDDEN,
    errno.EPERM: _FORBIDDEN,
    errno.ENOENT: "make the folder first, or name one that exists",
    errno.EEXIST: "a file stands where a folder is needed: name another place",
    errno.ENOTDIR: "a part of this path is a file, no folder: name another place",
    errno.EISDIR: "this is a folder: give the path of a file",
    errno.EMFILE: "this process has too many open files: raise `ulimit -n`",
    errno.ENFILE: "this host has too many open files: end programs that hold many",
}
"""What to do, by the number of the operating system's error."""


class RunError(EdgebedError):
    exit_code = 5


class DivergedError(RunError):
    pass


def in_words(error: BaseException) -> str:
    """An error as a record says it: message and hint, or the type and what it says."""
    if isinstance(error, EdgebedError):
        return f"{error} {error.hint}".strip()
    if isinstance(error, MemoryError):
        return "out of memory: give the device more memory or a smaller batch"
    return f"{type(error).__name__}: {error}"


def said(text: object) -> str:
    """An error, or a hint, as a terminal may show it: it may repeat what stands in a file of others."""
    return printable(str(text), MOST_SAID, keep="\n")


def trace_of(error: BaseException) -> str:
    """The traceback of an error that nobody foresaw, the end of it where it is long; "" for one of our own."""
    if isinstance(error, EdgebedError):
        return ""
    text = "".join(traceback.format_exception(error))
    return text if len(text) <= MOST_TRACE else f"…{text[1 - MOST_TRACE :]}"


def lasting(seconds: float) -> str:
    """A length of time in words: `45 days`, `3 hours`, `12.3 s`, `34 ms`."""
    for unit, size in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.3g} s" if seconds >= 0.9995 else f"{seconds * 1000:.3g} ms"


def counted(count: float, noun: str) -> str:
    """A count with its noun: `1 round`, `2 rounds`, `0.5 CPUs`."""
    return f"{count:.7g} {noun}{'' if count == 1 else 's'}"


def printable(text: str, most: int = 200, keep: str = "") -> str:
    """Text that came from elsewhere, as messages, records and tables show it: its first `most` characters, with a space
    for each that cannot be printed (control characters, marks that turn or hide text) and is not in `keep`."""
    cut = text[:most]
    if not cut.isprintable():
        cut = "".join(each if each.isprintable() or each in keep else " " for each in cut)
    return cut if len(text) <= most else f"{cut}…"
