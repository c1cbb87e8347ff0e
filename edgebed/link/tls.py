"""TLS between a device and the broker or the boards service: which certificates are shown and believed."""

from __future__ import annotations

import ssl
import tempfile
from pathlib import Path

import msgspec

from edgebed.errors import FileError, LinkError, UsageError


class Identity(msgspec.Struct, frozen=True):
    """The files of one side: the CA it believes, its own certificate and key, all PEM."""

    ca: Path
    certificate: Path
    key: Path

    @classmethod
    def of(cls, folder: Path) -> Identity:
        """The files of a board in its folder."""
        return cls(folder / "ca.pem", folder / "certificate.pem", folder / "key.pem")

    def authority(self) -> str:
        """The CA's certificate, PEM. Raises FileError; UsageError where the file does not hold exactly one certificate:
        with a second one, somebody else could play the service."""
        try:
            pem = self.ca.read_text("ascii", "replace")
        except OSError as error:
            raise FileError.of(error, self.ca) from None
        try:
            only = ssl.DER_cert_to_PEM_cert(ssl.PEM_cert_to_DER_cert(pem))
        except ValueError:
            only = ""
        if not only or "".join(pem.split()) != "".join(only.split()):
            raise UsageError(
                f"{self.ca} does not hold exactly one certificate: somebody else could play the service", hint=REJOIN
            )
        return only


def client_context(ca: str, identity: Identity | None = None) -> ssl.SSLContext:
    """Believes the CA (PEM) and no other, checks host name or address, and shows our certificate where there is one.
    Raises FileError, LinkError: a file cannot be read, or holds no certificate or key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_verify_locations(cadata=ca)
        if identity is not None:
            context.load_cert_chain(identity.certificate, identity.key)
    except ssl.SSLError as error:
        raise LinkError(f"certificate or key cannot be used: {error.reason or error}", hint=REJOIN) from None
    except OSError as error:
        raise FileError.of(error, None if identity is None else identity.certificate) from None
    return context


def identity_context(identity: Identity) -> ssl.SSLContext:
    """`client_context` with the CA of the identity. Raises FileError, LinkError, UsageError."""
    return client_context(identity.authority(), identity)


def server_context(ca: str, certificate: str, key: str) -> ssl.SSLContext:
    """Asks every client for a certificate of the CA. All is PEM."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    return with_pem(context, ca, certificate, key)


def with_pem(context: ssl.SSLContext, ca: str, certificate: str, key: str) -> ssl.SSLContext:
    """The context, which from now on believes the CA and shows the certificate. All is PEM."""
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=ca)
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:  # 0600; ssl takes certificates from files only
        file.write(key + certificate)
        file.flush()
        context.load_cert_chain(file.name)
    return context


def reason_of(error: ssl.SSLError) -> str:
    """What went wrong, in OpenSSL's words: `certificate has expired`, say."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    return (error.reason or str(error)).replace("_", " ").lower()


REJOIN = "edgebed-agent leave, then join again with a new token"
"""The hint for a board whose files cannot be used."""
