"""What a node helper reads from its secret when it starts, and its TLS towards the broker."""

from __future__ import annotations

import ssl
from pathlib import Path

import msgspec

from edgebed.guarded import Guarded
from edgebed.link.tls import with_pem


class HelperSettings(Guarded, frozen=True):
    """Of one helper. All certificates and keys are PEM."""

    ca: str
    # `certificate`, `key`: shown by it as a server
    certificate: str
    key: str
    # `client_certificate`, `client_key`: shown by it to the broker
    client_certificate: str
    client_key: str
    port: int  # of its commands; the next one is that of the engine
    alone_s: float  # it ends after so long without a command
    socket: str = "/engine.sock"


def read_settings(path: Path) -> HelperSettings:
    return msgspec.json.decode(path.read_bytes(), type=HelperSettings)


def broker_context(settings: HelperSettings) -> ssl.SSLContext:
    """Believes the CA only, and the broker's address must be in its certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return with_pem(context, settings.ca, settings.client_certificate, settings.client_key)
