"""The folder of a joined board: its key, its certificate, the CA that it believes, and where its service is."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from edgebed.errors import FileError, FleetError, UsageError
from edgebed.link.tls import REJOIN, Identity

RENEW_SHARE = 1 / 3
"""A certificate is renewed when less than this share of its life is left: 30 of 90 days."""


class JoinedService(msgspec.Struct, frozen=True):
    """What the board knows of its service. `host` and `port` are as a person typed them."""

    board: str
    name: str
    host: str
    port: int
    mqtt_port: int
    allow_code: bool = False  # whether the board runs plug-ins that its service sends


class Keystore:
    """The folder, which only its owner may enter (0700). A board is joined once `board.json` is there: it is written
    last."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.identity = folder, Identity.of(folder)
        self._about = folder / "board.json"

    @property
    def joined(self) -> bool:
        return self._about.exists()

    def service(self) -> JoinedService:
        """Raises UsageError where this board has not joined, or its file is damaged."""
        try:
            return msgspec.json.decode(self._about.read_bytes(), type=JoinedService)
        except FileNotFoundError:
            raise UsageError(
                f"this board has not joined: {self._about} does not exist",
                hint="run the command that `edgebed boards invite NAME` prints",
            ) from None
        except (OSError, msgspec.DecodeError) as error:
            raise UsageError(f"{self._about} cannot be used: {error}", hint=REJOIN) from None

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Be the one `edgebed-agent run` of this folder. Raises FleetError where there is another one, FileError."""
        try:
            folder = os.open(self.folder, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise FileError.of(error, self.folder) from None
        try:
            _lock(folder)
            yield
        finally:
            os.close(folder)

    def request(self) -> str:
        """A CSR of this board's key, in PEM. The key is made at the first call, and never leaves the folder. Raises
        FileError, UsageError."""
        subject = x509.Name([])  # the service gives the name
        csr = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(self._key(), hashes.SHA256())
        text: bytes = csr.public_bytes(serialization.Encoding.PEM)
        return text.decode()

    def keep(self, joined: JoinedService, ca: str, certificate: str) -> None:
        """Store what the service answered to a join. Raises FileError, UsageError."""
        self.keep_certificate(certificate)
        self._write(self.identity.ca, ca.encode())
        self._write(self._about, msgspec.json.format(msgspec.json.encode(joined)))

    def keep_certificate(self, certificate: str) -> None:
        """Raises UsageError for a certificate of another key."""
        try:
            key = x509.load_pem_x509_certificate(certificate.encode()).public_key()
        except ValueError as error:
            raise UsageError(f"the service sent no certificate: {error}", hint=REJOIN) from None
        if key != self._key().public_key():
            raise UsageError("the service sent the certificate of another key", hint=REJOIN)
        self._write(self.identity.certificate, certificate.encode())

    def life(self) -> tuple[datetime, datetime]:
        """Begin and end of the certificate, UTC. Raises UsageError."""
        try:
            certificate = x509.load_pem_x509_certificate(self.identity.certificate.read_bytes())
        except (OSError, ValueError) as error:
            raise UsageError(f"{self.identity.certificate} cannot be used: {error}", hint=REJOIN) from None
        return certificate.not_valid_before_utc, certificate.not_valid_after_utc

    def wants_renewal(self, now: datetime | None = None) -> bool:
        """Also one that is not valid yet: it was made when the service's clock was ahead."""
        begin, end = self.life()
        now = now or datetime.now(timezone.utc)
        return now < begin or end - now < (end - begin) * RENEW_SHARE

    def remove(self) -> None:
        """Raises FileError."""
        try:
            shutil.rmtree(self.folder)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise FileError.of(error, self.folder) from None

    def _key(self) -> ec.EllipticCurvePrivateKey:
        try:
            key = serialization.load_pem_private_key(self.identity.key.read_bytes(), None)
        except FileNotFoundError:
            return self._new_key()
        except (OSError, ValueError) as error:
            raise UsageError(f"{self.identity.key} cannot be used: {error}", hint=REJOIN) from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise UsageError(f"{self.identity.key} is no EC key", hint=REJOIN)
        return key

    def _new_key(self) -> ec.EllipticCurvePrivateKey:
        key = ec.generate_private_key(ec.SECP256R1())
        form = serialization.PrivateFormat.PKCS8
        self._write(
            self.identity.key,
            key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()),
        )
        return key

    def _write(self, path: Path, data: bytes) -> None:
        """Atomically, readable by its owner only, synced to disk."""
        part = path.with_suffix(".part")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.folder.chmod(0o700)
            part.unlink(missing_ok=True)
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except OSError as error:
            raise FileError.of(error, path) from None


def _lock(folder: int) -> None:
    """Raises FleetError."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FleetError(
            "`edgebed-agent run` already runs on this board",
            hint="end it first; where it is a service: systemctl stop edgebed-agent",
        ) from None
