"""HTTPS requests of a board to its service. They block; call them in a thread where an event loop runs."""

from __future__ import annotations

import errno
import hashlib
import http.client
import os
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TypeVar

import msgspec

from edgebed.errors import FileError, LinkError, UsageError, WireError, lasting
from edgebed.link.tls import Identity, client_context, identity_context, reason_of
from edgebed.wire.boards import MOST_CLOCK_ERROR_S, Enrolled, Join, Refusal, Renew, decode_json

TIMEOUT_S = 30.0
MOST_ANSWER = 64 << 10
"""Bytes of an answer that is no shard."""
PIECE = 256 << 10
MOST_SHARDS = 8
"""A board keeps so many, those that were used last."""

T = TypeVar("T")


class Service:
    """The service at `host:port`. Every method raises LinkError where it cannot be reached, and UsageError where it
    refuses. `clock`: this board's, UTC."""

    def __init__(
        self, host: str, port: int, clock: Callable[[], datetime] = lambda: datetime.now(timezone.utc)
    ) -> None:
        self.host, self.port, self._clock = host, port, clock

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def ca(self, fingerprint: bytes) -> str:
        """The CA's certificate (PEM), which must have this fingerprint. Nothing secret is sent. Raises LinkError: it
        has another one, or the clocks differ by too much."""
        with self._ask("GET", "/ca", _believes_all()) as answer:
            pem, date = self._whole(answer).decode("ascii", "replace"), answer.headers.get("date", "")
        try:
            der = ssl.PEM_cert_to_DER_cert(pem)
        except ValueError:
            der = b""
        if hashlib.sha256(der).digest() != fingerprint:
            raise LinkError(
                f"who answers at {self} is not the service of this token: its CA has another fingerprint",
                hint="check HOST:PORT; if they are right, somebody stands between, and nothing was sent to him",
            )
        check_clock(date, self._clock())
        return ssl.DER_cert_to_PEM_cert(der)  # only what was hashed: more certificates may have come in `pem`

    def clock_error(self) -> str:
        """What is wrong with this board's clock, as far as the service tells; "" where nothing is."""
        try:
            with self._ask("GET", "/ca", _believes_all()) as answer:
                check_clock(answer.headers.get("date", ""), self._clock())
        except LinkError as error:
            return f"{error}" if isinstance(error, ClockError) else ""
        return ""

    def join(self, ca: str, wanted: Join) -> Enrolled:
        return self._post("/join", wanted, client_context(ca), Enrolled)

    def renew(self, ca: str, wanted: Renew) -> Enrolled:
        return self._post("/renew", wanted, client_context(ca), Enrolled)

    def check(self, identity: Identity) -> None:
        """Raises UsageError where the service does not know this board any more."""
        with self._ask("GET", "/me", identity_context(identity)):
            pass

    def leave(self, identity: Identity) -> None:
        with self._ask("POST", "/leave", identity_context(identity), b"{}"):
            pass

    def shard(self, sha256: str, folder: Path, identity: Identity) -> Path:
        """The shard with this SHA-256, in `folder`. One that is there is not fetched again; a part is continued.

        Raises:
            WireError: what arrived has another SHA-256; it is removed.
            FileError: it cannot be written. If the disk is full, other shards are removed: the next try may have room.
        """
        path, part = folder / f"{sha256}.safetensors", folder / f"{sha256}.part"
        if path.exists():
            path.touch()
            return path
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._fetch(f"/shards/{sha256}", part, identity_context(identity))
            if _sha256(part) != sha256:
                part.unlink()
                raise WireError(f"the shard from {self} arrived damaged: its SHA-256 is not {sha256}")
            part.replace(path)
            _forget_old(folder)
        except http.client.HTTPException as error:
            raise LinkError(f"the shard from {self} broke off: {error!r}", hint="it is continued") from None
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                _make_room(folder, part)
            raise FileError.of(error, part) from None
        return path

    def _fetch(self, path: str, part: Path, context: ssl.SSLContext) -> None:
        have = part.stat().st_size if part.exists() else 0
        headers = {"Range": f"bytes={have}-"} if have else {}
        with self._ask("GET", path, context, headers=headers) as answer, part.open("ab") as file:
            if answer.status == 416:  # the part has all bytes already
                return
            if answer.status != 206:
                file.truncate(0)
            while piece := answer.read(PIECE):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())

    def _post(self, path: str, message: msgspec.Struct, context: ssl.SSLContext, kind: type[T]) -> T:
        with self._ask("POST", path, context, msgspec.json.encode(message)) as answer:
            try:
                return decode_json(self._whole(answer), kind)
            except WireError as error:
                raise LinkError(
                    f"{self} answered {error}", hint="is this the port of `edgebed boards serve`?"
                ) from None

    def _whole(self, answer: http.client.HTTPResponse) -> bytes:
        """Of an answer that is no shard. Raises LinkError."""
        try:
            return answer.read(MOST_ANSWER)
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise LinkError(f"the answer of {self} broke off: {error!r}", hint="try again") from None

    @contextmanager
    def _ask(
        self,
        method: str,
        path: str,
        context: ssl.SSLContext,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPSConnection(self.host, self.port, timeout=TIMEOUT_S, context=context)
        try:
            connection.request(method, path, body, {"Connection": "close", **(headers or {})})
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise self._unreachable(error) from None
        try:
            if answer.status not in (200, 206, 416):
                raise self._refused(answer)
            yield answer
        finally:
            connection.close()

    def _unreachable(self, error: Exception) -> LinkError:
        if isinstance(error, ssl.SSLError):
            return LinkError(
                f"{self} and this board do not trust each other: {reason_of(error)}",
                hint="see whether the clock is right (date) and who answers at this address",
            )
        return LinkError(
            f"the boards service at {self} cannot be reached: {error}",
            hint="check that `edgebed boards serve` runs there and that no firewall stands between",
        )

    def _refused(self, answer: http.client.HTTPResponse) -> UsageError | LinkError:
        try:
            refusal = decode_json(self._whole(answer), Refusal)
        except (WireError, LinkError):
            return LinkError(f"{self} answered with status {answer.status}", hint="try again later")
        kind = UsageError if answer.status in (400, 403, 409) else LinkError
        return kind(f"the boards service at {self} refused: {refusal.error}", hint=refusal.hint)


class ClockError(LinkError):
    """This board's clock is wrong."""


def check_clock(date: str, now: datetime) -> None:
    """Compare the header `Date` of an answer with our clock. Raises ClockError."""
    try:
        theirs = parsedate_to_datetime(date)
    except (TypeError, ValueError, OverflowError):
        return
    if theirs.tzinfo is None:  # as it is written for a server that does not know its time zone
        theirs = theirs.replace(tzinfo=timezone.utc)
    off = (now - theirs).total_seconds()
    if abs(off) > MOST_CLOCK_ERROR_S:
        raise ClockError(
            f"this board's clock is wrong: it is {lasting(abs(off))} {'ahead of' if off > 0 else 'behind'} the "
            f"service's (here {now:%Y-%m-%d %H:%M} UTC, there {theirs:%Y-%m-%d %H:%M} UTC)",
            hint=f"set it: timedatectl set-ntp true, or date -u -s '{theirs:%Y-%m-%d %H:%M}' (a Pi forgets the time "
            "without power)",
        )


def _believes_all() -> ssl.SSLContext:
    """For what is not secret: the CA, whose fingerprint is compared, and the time."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _forget_old(folder: Path) -> None:
    """Keep the shards that were used last."""
    files = sorted(folder.glob("*.safetensors"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in files[MOST_SHARDS:]:
        path.unlink()


def _make_room(folder: Path, wanted: Path) -> None:
    """Remove all shards and parts but this one."""
    for path in (*folder.glob("*.safetensors"), *folder.glob("*.part")):
        if path != wanted:
            path.unlink(missing_ok=True)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            digest.update(piece)
    return digest.hexdigest()
