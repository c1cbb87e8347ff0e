"""The certificate authority of this user's boards: its key, and what it signs. The library is `cryptography`.

All keys are EC P-256. A board's certificate can be shown by clients only, that of the server by servers only, so no
board can play the server.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import ipaddress
import secrets
from collections.abc import Iterable
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from edgebed.errors import FileError, UsageError
from edgebed.wire.boards import MOST_CLOCK_ERROR_S
from orchestrator.boards.service_folder import write_secret

BOARD_LIFE = dt.timedelta(days=90)
SERVER_LIFE = dt.timedelta(days=7)
"""Of the server's certificate: nobody can revoke it. The service makes a new one each day."""

CA_LIFE = dt.timedelta(days=3650)
"""Of the CA, and of the list of revoked certificates, which changes with every revocation. A broker locks everybody out
when that list has run out."""

BACKDATED = dt.timedelta(seconds=2 * MOST_CLOCK_ERROR_S)
"""Certificates are valid from so long ago on: clocks differ."""

PEM = serialization.Encoding.PEM


class Authority:
    """The CA in `ca.pem` and `ca.key` (0600) of a folder; both are made if neither is there."""

    def __init__(self, folder: Path) -> None:
        key, certificate = folder / "ca.key", folder / "ca.pem"
        if not key.exists() and not certificate.exists():
            _make_ca(key, certificate)
        try:
            loaded = serialization.load_pem_private_key(key.read_bytes(), None)
            self.certificate = x509.load_pem_x509_certificate(certificate.read_bytes())
        except OSError as error:
            raise FileError.of(error) from None
        except ValueError as error:
            raise FileError(f"the CA in {folder} cannot be used: {error}", hint=RESTORE) from None
        if not isinstance(loaded, ec.EllipticCurvePrivateKey) or loaded.public_key() != self.certificate.public_key():
            raise FileError(f"{key} is not the key of {certificate}", hint=RESTORE)
        self._key = loaded

    @property
    def pem(self) -> bytes:
        data: bytes = self.certificate.public_bytes(PEM)
        return data

    def fingerprint(self) -> bytes:
        """SHA-256 of the certificate (DER): what a token pins."""
        data: bytes = self.certificate.public_bytes(serialization.Encoding.DER)
        return hashlib.sha256(data).digest()

    def board_certificate(self, key: ec.EllipticCurvePublicKey, board: str, now: dt.datetime) -> x509.Certificate:
        """For the board with this id."""
        builder = _certificate(board, key, now, now + BOARD_LIFE)
        return self._sign(builder, ExtendedKeyUsageOID.CLIENT_AUTH)

    def client_pair(self, name: str, now: dt.datetime) -> tuple[bytes, bytes]:
        """A new key and certificate (PEM) of a client with this common name."""
        key = ec.generate_private_key(ec.SECP256R1())
        return _private_bytes(key), self.board_certificate(key.public_key(), name, now).public_bytes(PEM)

    def server_pair(self, hosts: Iterable[str], now: dt.datetime) -> tuple[bytes, bytes]:
        """A new key and certificate (PEM) of the server under these names and addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
        builder = _certificate("edgebed boards", key.public_key(), now, now + SERVER_LIFE)
        certificate = self._sign(builder.add_extension(names, critical=False), ExtendedKeyUsageOID.SERVER_AUTH)
        return _private_bytes(key), certificate.public_bytes(PEM)

    def revoked_list(self, serials: Iterable[int], number: int, now: dt.datetime) -> bytes:
        """The CRL, in PEM. `number` grows with every list."""
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.certificate.subject)
            .last_update(now - BACKDATED)
            .next_update(self.certificate.not_valid_after_utc)
            .add_extension(x509.CRLNumber(number), critical=False)
        )
        for serial in serials:
            entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
            builder = builder.add_revoked_certificate(entry)
        data: bytes = builder.sign(self._key, hashes.SHA256()).public_bytes(PEM)
        return data

    def _sign(self, builder: x509.CertificateBuilder, use: x509.ObjectIdentifier) -> x509.Certificate:
        return (
            builder.issuer_name(self.certificate.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([use]), critical=True)
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )


RESTORE = "restore the folder from a backup; a new CA would mean that every board joins again"


def requested_key(csr: str) -> ec.EllipticCurvePublicKey:
    """The key of a CSR (PEM) that is signed with it. A name is refused, since the service gives the name; all else is
    ignored. The signature is tried last, and of this kind of key only: others take up to 25 ms. Raises UsageError."""
    try:
        request = x509.load_pem_x509_csr(csr.encode("ascii", "replace"))
        key = request.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
            raise UsageError("the CSR's key is none of EC P-256")
        if list(request.subject):
            name = request.subject.rfc4514_string()
            raise UsageError(f"the CSR asks for the name {name!r}; the service gives the name")
        valid = request.is_signature_valid
    except (ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature, x509.InvalidVersion) as error:
        raise UsageError(f"this is no CSR: {error}") from None
    if not valid:
        raise UsageError("the CSR is not signed with its own key")
    return key


def key_id(key: ec.EllipticCurvePublicKey) -> str:
    """SHA-256 of a public key, as hexadecimal digits."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    data: bytes = key.public_bytes(serialization.Encoding.DER, form)
    return hashlib.sha256(data).hexdigest()


def new_board_id() -> str:
    """123 random bits (`edgebed.wire.boards.ID`)."""
    return "b" + secrets.token_hex(16)[1:]


def _make_ca(key_path: Path, certificate_path: Path) -> None:
    key, now = ec.generate_private_key(ec.SECP256R1()), dt.datetime.now(dt.UTC)
    name = f"Edgebed boards {secrets.token_hex(4)}"  # two CAs of one name would be mixed up
    certificate = (
        _certificate(name, key.public_key(), now, now + CA_LIFE)
        .issuer_name(_name(name))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    write_secret(key_path, _private_bytes(key))
    write_secret(certificate_path, certificate.public_bytes(PEM))


def _certificate(
    name: str, key: ec.EllipticCurvePublicKey, now: dt.datetime, end: dt.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(end)
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(**allowed: bool) -> x509.KeyUsage:
    names = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    rest = ("key_cert_sign", "crl_sign", "encipher_only", "decipher_only")
    return x509.KeyUsage(**(dict.fromkeys((*names, *rest), False) | allowed))


def _private_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    data: bytes = key.private_bytes(PEM, form, serialization.NoEncryption())
    return data
