"""What the service answers to a board that joins, renews or leaves. No network here.

A stranger learns nothing: whoever does not know a secret, or has no key that joined, gets the same refusal. Who knows a
secret is told why it no longer works.
"""

from __future__ import annotations

import datetime as dt

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from edgebed.errors import UsageError
from edgebed.wire.boards import Enrolled, Join, Renew, plain_facts
from orchestrator.boards.authority import Authority, key_id, new_board_id, requested_key
from orchestrator.boards.registry import Board, Invitation, Registry, Store

RENEW_PAUSE_S = 3600.0
"""Least time between two certificates of one board: each is remembered, and changes the registry. Who asks earlier gets
the last one again."""

LATE_S = 275 * 86400.0
"""So long after its end a certificate is still renewed: a board may be switched off for a year in all."""

INVITE = "make a new token: edgebed boards invite {name}"


class Refused(Exception):
    """The status, what the board is told, and a hint."""

    def __init__(self, status: int, error: str, hint: str = "") -> None:
        super().__init__(error)
        self.status, self.error, self.hint = status, error, hint


class Enrolment:
    """Gives boards their certificates, by registry and CA. `mqtt_port`: the broker's, for boards."""

    def __init__(self, store: Store, authority: Authority, mqtt_port: int) -> None:
        self._store, self._authority, self._mqtt_port = store, authority, mqtt_port

    @property
    def ca(self) -> bytes:
        return self._authority.pem

    def knows(self, secret: str) -> bool:
        """Whether this secret was ever given out. Quick: strangers are refused by it."""
        return self._store.look().invitation(secret) is not None

    def join(self, wanted: Join, now: float, source: str = "") -> Enrolled:
        """A join that is repeated gets the same certificate, and changes nothing. `source`: the address of the board.
        Raises Refused."""
        invitation = self._invitation(self._store.look(), wanted)
        key = _key_of(wanted.csr)
        _check(invitation, key_id(key), now)
        if (board := _again(self._store.look(), invitation)) is not None and board.certificate:
            return self._enrolled(board)
        with self._store.change(source) as registry:
            invitation = self._invitation(registry, wanted)
            _check(invitation, key_id(key), now)
            board = _again(registry, invitation) or _admit(registry, invitation, key_id(key), now)
            board.facts = plain_facts(wanted.facts)
            invitation.used_by, invitation.board = board.key, board.id
            return self._certify(board, key, now)

    def _invitation(self, registry: Registry, wanted: Join) -> Invitation:
        invitation = registry.invitation(wanted.secret)
        if invitation is None:
            raise unknown_token()
        return invitation

    def renew(self, wanted: Renew, now: float, source: str = "") -> Enrolled:
        """Raises Refused. The CSR proves that who asks has the key."""
        key = _key_of(wanted.csr)
        if self._store.look().by_key(key_id(key)) is None:
            raise unknown_board()
        with self._store.change(source) as registry:
            board = registry.by_key(key_id(key))
            if board is None:
                raise unknown_board()
            if now > board.not_after_s + LATE_S:
                raise Refused(403, "this board's certificate ran out too long ago", INVITE.format(name=board.name))
            if board.certificate and abs(now - board.renewed_s) < RENEW_PAUSE_S:  # the clock may have been set back
                return self._enrolled(board)
            return self._certify(board, key, now)

    def leave(self, serial: int | None, now: float, source: str = "") -> None:
        """Raises Refused."""
        self.member(serial)
        with self._store.change(source) as registry:
            if (board := registry.with_serial(serial or 0)) is not None:
                registry.revoke(board, "it left", now)

    def member(self, serial: int | None) -> Board:
        """The board whose certificate has this serial number. Raises Refused for one that may not connect."""
        board = None if serial is None else self._store.look().with_serial(serial)
        if board is None:
            raise unknown_board()
        return board

    def _certify(self, board: Board, key: ec.EllipticCurvePublicKey, now: float) -> Enrolled:
        certificate = self._authority.board_certificate(key, board.id, dt.datetime.fromtimestamp(now, dt.UTC))
        board.serials.append(f"{certificate.serial_number:x}")
        board.not_after_s, board.renewed_s = certificate.not_valid_after_utc.timestamp(), now
        board.certificate = certificate.public_bytes(Encoding.PEM).decode()
        return self._enrolled(board)

    def _enrolled(self, board: Board) -> Enrolled:
        return Enrolled(board.id, board.name, board.certificate, self._mqtt_port)


def unknown_token() -> Refused:
    return Refused(403, "this token is not known here", "copy the whole command that `edgebed boards invite` printed")


def unknown_board() -> Refused:
    return Refused(403, "this board is not known here, or it is revoked", "join again with a new token")


def _key_of(csr: str) -> ec.EllipticCurvePublicKey:
    try:
        return requested_key(csr)
    except UsageError as error:
        raise Refused(400, str(error)) from None


def _check(invitation: Invitation, key: str, now: float) -> None:
    """Raises Refused."""
    hint = INVITE.format(name=invitation.name)
    if invitation.used_by and invitation.used_by != key:
        raise Refused(403, "this token was used already, by another key", f"if that was not you, revoke it; {hint}")
    if invitation.withdrawn:
        raise Refused(403, "this token was withdrawn, or a newer one was made for the same name", hint)
    if now > invitation.expires_s:
        raise Refused(403, "this token has run out", hint)


def _again(registry: Registry, invitation: Invitation) -> Board | None:
    """The board that joined with this token: its answer was lost, and it asks again."""
    if not invitation.used_by:
        return None
    board = registry.by_key(invitation.used_by)
    if board is None or board.id != invitation.board:
        raise Refused(403, "the board that joined with this token is revoked", INVITE.format(name=invitation.name))
    return board


def _admit(registry: Registry, invitation: Invitation, key: str, now: float) -> Board:
    """A new board. Raises Refused."""
    if registry.by_key(key) is not None:
        raise Refused(409, "this key has joined already", "edgebed-agent leave, then join")
    if (old := registry.named(invitation.name)) is not None:
        if not invitation.replaces:
            raise Refused(409, f"there is a board {invitation.name} already", "edgebed boards invite NAME --replace")
        registry.revoke(old, "replaced", now)
    board = Board(new_board_id(), invitation.name, invitation.profile, key, now, [], now, now)
    registry.boards.append(board)
    return board
