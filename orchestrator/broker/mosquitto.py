"""An installed Mosquitto as a child process, and the files that every Mosquitto of ours reads."""

from __future__ import annotations

import base64
import hashlib
import os
import pwd
import secrets
import shutil
from pathlib import Path

from edgebed.errors import LinkError
from orchestrator.broker.acl import mosquitto_lines
from orchestrator.broker.child import Child
from orchestrator.broker.seams import Listen, Runner
from orchestrator.fleet.base import TlsListener

TLS_FILES = {"cafile": "ca.pem", "certfile": "server.pem", "keyfile": "server.key"}
LARGEST_MESSAGE = 8 << 20
"""Bytes; a frame of ours is a chunk and a header, 5 MiB at most."""

UNIX_PATH_BYTES = 107
"""The longest path of a Unix socket on Linux."""

MOST_QUEUED_BYTES = 1 << 30
"""For one client. Of one transfer at most four chunks of 1 MiB wait here, so even the orchestrator, which hears all
devices, comes near to it only if a device floods it."""


def find() -> Runner | None:
    """A runner if Mosquitto is installed."""
    program = binary()
    if program is None:
        return None
    user = broker_user()

    def prepare(listen: Listen, folder: Path) -> tuple[list[str], bytes]:
        return [program, "-c", str(write_files(listen, folder, owner=user))], b""

    return Child("mosquitto", prepare, user, inherits=False)


def binary() -> str | None:
    """The path of the installed Mosquitto."""
    return shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def broker_user() -> str:
    """The user that Mosquitto runs as where we are root; "" where we are not root, or there is no such user. It is
    started as that user: if it changed its user later, the kernel would no longer kill it when we end."""
    try:
        return pwd.getpwnam("mosquitto").pw_name if os.geteuid() == 0 else ""
    except KeyError:
        return ""


def socket_path(folder: Path) -> Path:
    """The orchestrator's way in: a Unix socket, in a folder that only the broker's user and root may enter. On a TCP
    port, another user's program could answer in place of a broker that has ended, and be shown the password."""
    return folder / "run" / "socket"


def make_socket_folder(folder: Path, owner: str | int) -> None:
    """Make the folder of `socket_path` in this one, which stays ours; `owner` may pass through it. Raises LinkError."""
    path = socket_path(folder)
    if len(os.fsencode(path)) > UNIX_PATH_BYTES:
        raise LinkError(
            f"the path of the broker's socket is too long: {path}", hint="set TMPDIR to a folder with a short name"
        )
    path.parent.mkdir(mode=0o700, exist_ok=True)
    if owner:
        shutil.chown(path.parent, owner)
        folder.chmod(0o711)


def write_files(listen: Listen, folder: Path, *, owner: str | int = "", seen_as: str = "") -> Path:
    """Write configuration and password file; returns the configuration's path. Raises LinkError.

    Args:
        owner: who shall own them; "" leaves them ours.
        seen_as: the folder's path in the broker's container; "" where it runs on the host.
    """
    passwords, rights, config = folder / "passwords", folder / "acl", folder / "mosquitto.conf"
    hashes = {user: password_hash(password, secrets.token_bytes(12)) for user, password in listen.users.items()}
    passwords.write_text("".join(f"{user}:{hashed}\n" for user, hashed in hashes.items()))
    rights.write_text("\n".join(mosquitto_lines(listen.fleet)))
    for path in (passwords, rights):
        path.chmod(0o600)
    config.write_text("\n".join(settings(listen, seen_as or str(folder))))
    for path in (passwords, rights, config, *_tls_files(listen.tls, folder)) if owner else ():
        shutil.chown(path, owner)
    make_socket_folder(folder, owner)
    return config


def settings(listen: Listen, folder: str) -> list[str]:
    """The lines of mosquitto.conf, whose files are in `folder`."""
    return [
        *common_settings(folder),
        "connection_messages false",
        f"listener 0 {socket_path(Path(folder))}",
        *[
            line
            for address in listen.addresses
            for line in (f"listener {listen.port} {address}", f"max_connections {listen.most_connections}")
        ],
        *([] if listen.tls is None else _tls_settings(listen, listen.tls, folder)),
        "",
    ]


def _tls_settings(listen: Listen, tls: TlsListener, folder: str) -> list[str]:
    return [
        f"listener {listen.port} {tls.address}",
        f"max_connections {listen.most_connections}",
        "tls_version tlsv1.2",  # the least one
        *(f"{key} {folder}/{name}" for key, name in TLS_FILES.items()),
        "require_certificate true",
    ]


def _tls_files(tls: TlsListener | None, folder: Path) -> list[Path]:
    paths = []
    for name, data in zip(TLS_FILES.values(), () if tls is None else (tls.ca, tls.certificate, tls.key), strict=False):
        path = folder / name
        path.touch(0o600)
        path.write_bytes(data)
        paths.append(path)
    return paths


def common_settings(folder: str) -> list[str]:
    """The lines that every Mosquitto of ours has. The broker must drop no message; our transfers limit how many wait in
    its queues. Mosquitto 2.1 refuses packets above 2,000,000 bytes unless it is told otherwise."""
    return [
        "user root",  # keep the user that it was started as
        "allow_anonymous false",
        f"password_file {folder}/passwords",
        f"acl_file {folder}/acl",
        "persistence false",
        "max_inflight_messages 0",
        "max_queued_messages 100000",
        f"max_queued_bytes {MOST_QUEUED_BYTES}",
        f"max_packet_size {LARGEST_MESSAGE}",
        "set_tcp_nodelay true",
        "log_dest stderr",
        "log_type error",
        "log_type warning",
    ]


def password_hash(password: str, salt: bytes) -> str:
    """As Mosquitto's password file holds it: one salted SHA-512, enough for a random password of 144 bits."""
    digest = hashlib.sha512(password.encode() + salt).digest()
    return f"$6${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"
