"""An installed Mosquitto as a child process, and the files that every Mosquitto of ours reads."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import re
import secrets
import shutil
import subprocess
from pathlib import Path

from edgebed.errors import FileError, LimitError, LinkError
from edgebed.limits.shell import run, which
from orchestrator.broker.acl import mosquitto_lines
from orchestrator.broker.child import Child
from orchestrator.broker.runner import Listen, Runner
from orchestrator.fleet.local.users import UID_MAP, is_mapped

TLS_FILES = {"cafile": "ca.pem", "certfile": "server.pem", "keyfile": "server.key"}
LARGEST_MESSAGE = 8 << 20
"""Bytes; a frame of ours is a chunk and a header, 5 MiB at most."""

USERS = (2_100_100_000, 58_400)
"""The user id of a Mosquitto of ours where we are root, and the one where a user namespace maps 65,536 users only.
Nobody else on this host has it (docs/throttling.md): Debian's own Mosquitto runs as `mosquitto`, and may be open to
the network."""

PATCHED, PATCHED_DEBIAN = (2, 0, 19), "2.0.11-1.2+deb12u2"
"""Versions without the flaws that were published until 2024; Debian 12 keeps 2.0.11 and mends it."""

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
    return which("mosquitto")


def flaws(program: str) -> str:
    """What is known against the installed Mosquitto, for a broker that is open to a network; "" where nothing is."""
    try:
        said = subprocess.run([program, "-h"], capture_output=True, text=True, timeout=10, check=False).stdout
        version = re.findall(r"version (\d+)\.(\d+)\.(\d+)", said)[0]
    except (OSError, subprocess.TimeoutExpired, IndexError):
        return f"the version of {program} cannot be read"
    if tuple(map(int, version)) >= PATCHED:
        return ""
    with contextlib.suppress(LimitError):
        packed = run(["dpkg-query", "-W", "-f", "${Version}", "mosquitto"])
        run(["dpkg", "--compare-versions", packed, "ge", PATCHED_DEBIAN])
        return ""
    return f"Mosquitto {'.'.join(version)} has published flaws: apt install --only-upgrade mosquitto"


def broker_user() -> int | None:
    """The user and group that Mosquitto runs as where we are root; else None. It is started as that user: if it changed
    its user later, the kernel would no longer kill it when we end."""
    if os.geteuid() != 0:
        return None
    return USERS[0] if is_mapped(USERS[0], UID_MAP.read_text()) else USERS[1]


def socket_path(folder: Path) -> Path:
    """The orchestrator's way in: a Unix socket, in a folder that only the broker's user and root may enter. On a TCP
    port, another user's program could answer in place of a broker that has ended, and be shown the password. Raises
    LinkError."""
    path = folder / "run" / "socket"
    text = str(path)
    if len(os.fsencode(path)) > UNIX_PATH_BYTES or any(char.isspace() or not char.isprintable() for char in text):
        # Mosquitto ends a path at white space, and removes the file that has the name before it.
        raise LinkError(
            f"the broker's socket cannot be called {text!r}: the path is too long, or has white space in it",
            hint="set TMPDIR to a folder with a short and plain name",
        )
    return path


def make_socket_folder(folder: Path, owner: int | None) -> None:
    """Make the folder of `socket_path` in this one, which stays ours; `owner` may pass through it."""
    path = folder / "run"
    path.mkdir(mode=0o700, exist_ok=True)
    if owner is not None:
        shutil.chown(path, owner)
        folder.chmod(0o711)


def write_files(listen: Listen, folder: Path, *, owner: int | None = None, seen_as: str = "") -> Path:
    """Write configuration and password file; returns the configuration's path. Raises FileError, LinkError.

    Args:
        owner: the user who shall own them; None leaves them ours.
        seen_as: the folder's path in the broker's container; "" where it runs on the host.
    """
    hashes = {user: password_hash(password, secrets.token_bytes(12)) for user, password in listen.users.items()}
    lines = {
        "passwords": [f"{user}:{hashed}" for user, hashed in hashes.items()],
        "acl": mosquitto_lines(listen.fleet),
        "mosquitto.conf": settings(listen, seen_as or str(folder)),
    }
    files = {name: "\n".join([*text, ""]).encode() for name, text in lines.items()}
    if tls := listen.tls:
        files |= dict(zip(TLS_FILES.values(), (tls.ca, tls.certificate, tls.key), strict=True))
    for name, data in files.items():
        write_file(folder / name, data, owner)
    make_socket_folder(folder, owner)
    return folder / "mosquitto.conf"


def write_file(path: Path, data: bytes, owner: int | None) -> None:
    """Atomically, and readable by the user `owner` only; None: by us. Raises FileError."""
    part = path.with_name(f"{path.name}.part")
    try:
        part.unlink(missing_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
            if owner is not None:
                os.fchown(file.fileno(), owner, -1)
        part.replace(path)
    except OSError as error:
        raise FileError.of(error, part) from None


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
        *([] if listen.tls is None else tls_settings(listen.port, listen.tls.address, listen.most_connections, folder)),
        "",
    ]


def tls_settings(port: int, address: str, most: int, folder: str) -> list[str]:
    """A listener that asks for a certificate; its own is in TLS_FILES."""
    return [
        f"listener {port} {address}",
        f"max_connections {most}",
        "tls_version tlsv1.2",  # the least one
        *(f"{key} {folder}/{name}" for key, name in TLS_FILES.items()),
        "require_certificate true",
    ]


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
