"""Who has joined and who may: boards and invitations, in one file that the service and the command line change."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec

from edgebed.errors import FileError, UsageError
from edgebed.wire.topics import check_name
from orchestrator.boards import audit
from orchestrator.boards.service_folder import ServiceFolder, write_secret
from orchestrator.files.shared_lock import lock_in_time

LOCK_S = 20.0
REMEMBERED_S = 7 * 86400.0
"""So long an invitation that was used or has run out is remembered, to say why a token no longer works."""


class Invitation(msgspec.Struct):
    """A token that was given out. Of its secret only the SHA-256 is kept: it has 128 random bits, so that is enough."""

    digest: str
    name: str
    profile: str
    made_s: float
    expires_s: float
    replaces: bool = False  # the board of this name loses its certificates when the token is used
    used_by: str = ""  # the key that joined with it; the same key may ask again
    board: str = ""
    withdrawn: bool = False


class Board(msgspec.Struct):
    """A board that has joined. The key is its identity; the name is a label."""

    id: str  # common name of its certificates
    name: str
    profile: str
    key: str  # SHA-256 of its public key
    joined_s: float
    serials: list[str]  # of all its certificates, hexadecimal
    not_after_s: float  # end of the newest one
    renewed_s: float
    revoked_s: float | None = None  # None while it may connect
    revoked_why: str = ""
    facts: dict[str, str] = {}
    certificate: str = ""  # the newest one, PEM; "" where an earlier version gave it


class Registry(msgspec.Struct):
    """`version` grows with every change."""

    version: int = 0
    boards: list[Board] = []
    invitations: list[Invitation] = []

    def active(self) -> list[Board]:
        return [board for board in self.boards if board.revoked_s is None]

    def named(self, name: str) -> Board | None:
        """The board that has this name now."""
        return next((board for board in self.active() if board.name == name), None)

    def by_key(self, key: str) -> Board | None:
        return next((board for board in self.active() if board.key == key), None)

    def with_serial(self, serial: int) -> Board | None:
        text = f"{serial:x}"
        return next((board for board in self.active() if text in board.serials), None)

    def find(self, wanted: str) -> Board:
        """An active board by name, by id, or by the beginning of its id. Raises UsageError."""
        if board := self.named(wanted):
            return board
        found = [board for board in self.active() if len(wanted) >= 4 and board.id.startswith(wanted)]
        if len(found) != 1:
            why = f"several boards have ids that begin with {wanted!r}" if found else self._why_none(wanted)
            raise UsageError(why, hint="`edgebed boards ls` shows the boards with their names and ids")
        return found[0]

    def _why_none(self, wanted: str) -> str:
        if any(wanted in (board.name, board.id) for board in self.boards):
            return f"the board {wanted!r} is revoked"
        if any(each.name == wanted for each in self.waiting()):
            return f"the board {wanted!r} was invited and has not joined"
        return f"no board has the name or id {wanted!r}"

    def revoked_serials(self) -> list[int]:
        return [int(serial, 16) for board in self.boards if board.revoked_s is not None for serial in board.serials]

    # ---- invitations ----

    def invite(self, name: str, profile: str, lasts_s: float, replace: bool, now: float) -> str:
        """A new secret for a board of this name; one given out earlier for the name no longer works. Raises
        UsageError."""
        check_name(name, "board")
        if self.named(name) is not None and not replace:
            raise UsageError(
                f"there is a board {name} already",
                hint="take another name; or --replace if it was set up again: the old one is revoked as it joins",
            )
        for earlier in self.invitations:
            earlier.withdrawn |= earlier.name == name and not earlier.used_by
        secret = secrets.token_urlsafe(16)
        made = Invitation(digest(secret), name, profile, now, now + lasts_s, replace)
        recent = [each for each in self.invitations if each.expires_s > now - REMEMBERED_S]
        self.invitations = [*recent, made]
        return secret

    def invitation(self, secret: str) -> Invitation | None:
        """By the digest, so the time that this takes tells nothing about the secret."""
        wanted = digest(secret)
        return next((each for each in self.invitations if secrets.compare_digest(each.digest, wanted)), None)

    def waiting(self) -> list[Invitation]:
        """Invitations that nobody has used, also those that have run out."""
        return [each for each in self.invitations if not (each.used_by or each.withdrawn)]

    def withdraw(self, name: str) -> bool:
        """Make unused invitations of this name useless; False if there is none."""
        open_ = [each for each in self.waiting() if each.name == name]
        for each in open_:
            each.withdrawn = True
        return bool(open_)

    # ---- boards ----

    def revoke(self, board: Board, why: str, now: float) -> None:
        board.revoked_s, board.revoked_why = now, why

    def expel(self, wanted: str, now: float) -> Board | None:
        """Revoke a board by name or id, and withdraw the open invitations of its name. None where there were only
        invitations. Raises UsageError."""
        withdrawn = self.withdraw(wanted)
        if withdrawn and self.named(wanted) is None:
            return None
        board = self.find(wanted)
        self.withdraw(board.name)
        self.revoke(board, "by hand", now)
        return board

    def rename(self, board: Board, name: str, now: float) -> None:
        """Raises UsageError where the name is no name, is taken, or stands in an open invitation."""
        check_name(name, "board")
        if (other := self.named(name)) is not None and other is not board:
            raise UsageError(f"there is a board {name} already (id {other.id})", hint="take another name")
        if any(each.name == name and each.expires_s > now for each in self.waiting()):
            raise UsageError(
                f"a board {name} is invited",
                hint=f"take another name, or `edgebed boards revoke {name}`, which ends the invitation",
            )
        board.name = name


class Store:
    """The registry's file. A change is made under a lock, and written atomically."""

    def __init__(self, place: ServiceFolder) -> None:
        self._path, self._audit = place.registry, place.audit
        self._seen: tuple[tuple[int, int], Registry] | None = None

    def read(self) -> Registry:
        """Raises FileError."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Registry)
        except FileNotFoundError:
            return Registry()
        except (OSError, msgspec.DecodeError) as error:
            raise FileError(f"{self._path} cannot be used: {error}", hint="restore it from a backup") from None

    def look(self) -> Registry:
        """As `read`, but the file is parsed only where it has changed. Not to be changed. Raises FileError."""
        stamp = self.stamp()
        if self._seen is None or self._seen[0] != stamp:
            self._seen = stamp, self.read()
        return self._seen[1]

    @contextlib.contextmanager
    def change(self, by: str = "") -> Iterator[Registry]:
        """The registry, to be changed; written at the end of the block where it was. What has changed is noted in the
        audit file, with who did it (`by`; "": this process's user). Raises FileError, FleetError."""
        with self._locked():
            before, registry = self.read(), self.read()
            yield registry
            if registry == before:
                return
            audit.append(self._audit, list(_changes(before, registry, by or audit.this_user())))
            registry.version += 1
            write_secret(self._path, msgspec.json.format(msgspec.json.encode(registry)))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Raises FileError; FleetError where another process has it for long."""
        path = self._path.with_suffix(".lock")
        try:
            lock = path.open("a")
        except OSError as error:
            raise FileError.of(error, path) from None
        with lock:
            lock_in_time(lock.fileno(), path, LOCK_S)
            yield

    def stamp(self) -> tuple[int, int]:
        """Changes when the file does."""
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return (0, 0)
        return (found.st_mtime_ns, found.st_ino)


def _changes(before: Registry, after: Registry, by: str) -> Iterator[audit.AuditLine]:
    """What one change of the registry did."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    invited = {each.digest: each for each in before.invitations}
    for each in after.invitations:
        old = invited.get(each.digest)
        if old is None:
            yield audit.AuditLine(now, "invited", each.name, by)
        elif each.withdrawn and not old.withdrawn:
            yield audit.AuditLine(now, "withdrawn", each.name, by)
    known = {each.id: each for each in before.boards}
    for board in after.boards:
        was = known.get(board.id)
        if was is None:
            yield audit.AuditLine(
                now, "joined", board.name, by, board.id, serial=board.serials[-1] if board.serials else ""
            )
            continue
        if board.name != was.name:
            yield audit.AuditLine(now, "renamed", board.name, by, board.id)
        if len(board.serials) > len(was.serials):
            yield audit.AuditLine(now, "renewed", board.name, by, board.id, serial=board.serials[-1])
        if board.revoked_s is not None and was.revoked_s is None:
            yield audit.AuditLine(now, "revoked", board.name, by, board.id, board.revoked_why)


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
