"""The audit file of the boards service: who was invited, joined, renewed, or was revoked, from where and by whom.

A line of JSON for each change of the registry, which is written before the change itself. It is only ever appended to.
"""

from __future__ import annotations

import getpass
import os
from pathlib import Path

import msgspec

from edgebed.errors import FileError


class AuditLine(msgspec.Struct, frozen=True):
    """One change."""

    at: str  # UTC, ISO 8601
    what: str  # invited, withdrawn, joined, renewed, renamed or revoked
    name: str
    by: str  # the user of this host who did it, or the address from which a board did
    board: str = ""
    why: str = ""  # of a revocation
    serial: str = ""  # of the new certificate, hexadecimal


def this_user() -> str:
    """Who runs this process, also through sudo."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):
        name = str(os.geteuid())
    behind = os.environ.get("SUDO_USER", "")
    return f"{name} (sudo by {behind})" if behind else name


def append(path: Path, lines: list[AuditLine]) -> None:
    """Synced to disk. Raises FileError."""
    if not lines:
        return
    try:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            data = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
            if os.write(file, data) < len(data):
                raise OSError("it was written in part only")
            os.fsync(file)
        finally:
            os.close(file)
    except OSError as error:
        raise FileError.of(error, path) from None
