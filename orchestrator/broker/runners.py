"""The ways to run an MQTT broker of our own: Mosquitto as a child or in a container, amqtt as a child.

`orchestrator.broker.open_broker` chooses among them. Each ends with us, whatever ends us (a container at the next
start).
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ctypes
import hashlib
import json
import os
import pwd
import secrets
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec

from edgebed.errors import LinkError
from orchestrator.fleet.owner import BROKER, OWNER, this_process

IMAGES = ("eclipse-mosquitto:2", "eclipse-mosquitto:latest")
CONTAINER_USER = 2_100_100_000
"""Whom a container's Mosquitto runs as where we are root: nobody else on this host (docs/throttling.md)."""

MOST_PROCESSES = 32
MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(128 << 20)}
"""glibc would map and unmap memory for each packet of 1 MB: that is two thirds of Mosquitto's CPU time (1.4 against
0.45 ms per MB), and nearly half the goodput on loopback."""


LARGEST_MESSAGE = 8 << 20
"""Bytes; a frame of ours is a chunk and a header, 5 MiB at most."""


class Listen(msgspec.Struct, frozen=True):
    """Where a broker of ours listens and whom it lets in."""

    addresses: list[str]
    port: int
    username: str
    password: str


class Runner(Protocol):
    """A way to run a broker. `start` returns when it is under way; `failure` tells why it ended, if it has."""

    kind: str

    async def start(self, listen: Listen, folder: Path) -> None: ...
    async def stop(self) -> None: ...
    def failure(self) -> str: ...


# ---- child processes -------------------------------------------------------------------------------------------------


class _Child:
    """A broker as a child process: `prepare` writes its files and returns command and standard input."""

    def __init__(self, kind: str, prepare: Callable[[Listen, Path], tuple[list[str], bytes]], user: str = "") -> None:
        self.kind, self._prepare = kind, prepare
        self._identity: dict[str, Any] = {"user": user, "group": user, "extra_groups": []} if user else {}
        self._process: asyncio.subprocess.Process | None = None
        self._log: Path | None = None

    async def start(self, listen: Listen, folder: Path) -> None:
        command, stdin = self._prepare(listen, folder)
        self._log = folder / "broker.log"
        try:
            with self._log.open("wb") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C is for us: the broker outlives the tidying up
                    preexec_fn=_die_with_parent,
                    env={**os.environ, **MALLOC},
                    **self._identity,
                )
        except OSError as error:
            raise LinkError(f"{command[0]} cannot be run: {error.strerror}") from None
        assert self._process.stdin is not None
        self._process.stdin.write(stdin)
        self._process.stdin.close()

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), 3.0)
        except TimeoutError:
            process.kill()
            await process.wait()

    def failure(self) -> str:
        if self._process is None or self._process.returncode is None:
            return ""
        lines = self._log.read_text(errors="replace").strip().splitlines() if self._log else []
        return f"exit code {self._process.returncode}: {' / '.join(lines[-3:])}"


_libc = ctypes.CDLL(None, use_errno=True)


def _die_with_parent() -> None:
    """In the child: be killed when the thread that started us ends (prctl PR_SET_PDEATHSIG)."""
    with contextlib.suppress(AttributeError):
        _libc.prctl(1, signal.SIGKILL)


def _find_mosquitto() -> Runner | None:
    binary = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if binary is None:
        return None

    def prepare(listen: Listen, folder: Path) -> tuple[list[str], bytes]:
        return [binary, "-c", str(write_mosquitto_files(listen, folder))], b""

    return _Child("mosquitto", prepare, mosquitto_user())


def _find_embedded() -> Runner | None:
    try:
        import amqtt  # noqa: F401
    except ImportError:
        return None

    def prepare(listen: Listen, folder: Path) -> tuple[list[str], bytes]:
        return [sys.executable, "-m", "orchestrator.broker.embedded"], json.dumps(msgspec.to_builtins(listen)).encode()

    return _Child("embedded broker (amqtt)", prepare)


# ---- Mosquitto's files -----------------------------------------------------------------------------------------------


def mosquitto_user() -> str:
    """The user a Mosquitto of root's runs as; "" where we are not root or it has none. We change to it before the
    start, since a later change would take away that it dies with us."""
    try:
        return pwd.getpwnam("mosquitto").pw_name if os.geteuid() == 0 else ""
    except KeyError:
        return ""


def write_mosquitto_files(listen: Listen, folder: Path, *, seen_as: str = "") -> Path:
    """Configuration and password file; returns the configuration's path. `seen_as` is what the broker calls the folder
    in a container."""
    passwords, config = folder / "passwords", folder / "mosquitto.conf"
    passwords.write_text(f"{listen.username}:{mosquitto_hash(listen.password, secrets.token_bytes(12))}\n")
    passwords.chmod(0o600)
    config.write_text("\n".join(mosquitto_settings(listen, f"{seen_as or folder}/passwords")))
    user: str | int = mosquitto_user()
    if seen_as and os.geteuid() == 0:
        user = CONTAINER_USER
    for path in (folder, passwords, config) if user else ():
        shutil.chown(path, user)
    return config


def mosquitto_settings(listen: Listen, passwords: str) -> list[str]:
    """The lines of mosquitto.conf. Our transfers bound what is queued; the broker must not drop any of it."""
    return [
        "user root",  # change to nobody else than who starts it
        "allow_anonymous false",
        f"password_file {passwords}",
        "persistence false",
        "max_inflight_messages 0",
        "max_queued_messages 100000",
        f"message_size_limit {LARGEST_MESSAGE}",
        "set_tcp_nodelay true",
        "connection_messages false",
        "log_dest stderr",
        "log_type error",
        "log_type warning",
        *[f"listener {listen.port} {address}" for address in listen.addresses],
        "",
    ]


def mosquitto_hash(password: str, salt: bytes) -> str:
    """One salted SHA-512, which every Mosquitto reads; enough for a random password of 144 bits."""
    digest = hashlib.sha512(password.encode() + salt).digest()
    return f"$6${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"


# ---- Mosquitto in a container ----------------------------------------------------------------------------------------


class _Container:
    """Mosquitto from an image that is already here, without any right but to listen: it uses the host's network, for
    devices reach it at the host's ends of their own, and a published port is not forwarded between networks."""

    kind = "mosquitto container"

    def __init__(self, client: Any, image: str) -> None:
        self._client, self._image = client, image
        self._container: Any = None

    async def start(self, listen: Listen, folder: Path) -> None:
        import docker.errors

        write_mosquitto_files(listen, folder, seen_as="/edgebed")
        try:
            self._container = await asyncio.to_thread(self._create, folder)
            await asyncio.to_thread(self._container.start)
        except docker.errors.DockerException as error:
            raise LinkError(f"the container did not start: {error}") from None

    def _create(self, folder: Path) -> Any:
        return self._client.containers.create(
            self._image,
            entrypoint=["mosquitto", "-c", "/edgebed/mosquitto.conf"],
            network_mode="host",
            user=f"{CONTAINER_USER}:{CONTAINER_USER}" if os.geteuid() == 0 else f"{os.geteuid()}:{os.getegid()}",
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            read_only=True,
            pids_limit=MOST_PROCESSES,
            volumes={str(folder): {"bind": "/edgebed", "mode": "ro"}},
            labels={BROKER: "mosquitto", OWNER: str(this_process())},
        )

    async def stop(self) -> None:
        import docker.errors

        container, self._container = self._container, None
        if container is not None:
            with contextlib.suppress(docker.errors.DockerException):
                await asyncio.to_thread(container.remove, force=True)

    def failure(self) -> str:
        import docker.errors

        try:
            self._container.reload()
            return "" if self._container.status in ("created", "running") else str(self._container.logs(tail=3))
        except docker.errors.DockerException as error:
            return str(error)


def _find_image() -> Runner | None:
    """A runner if a Docker engine and an image are here."""
    try:
        import docker
        import docker.errors
    except ImportError:
        return None
    try:
        client = docker.from_env(timeout=20)
        tags = {tag for image in client.images.list() for tag in image.tags}
    except docker.errors.DockerException:
        return None
    return next((_Container(client, image) for image in IMAGES if image in tags), None)


FINDERS: dict[str, Callable[[], Runner | None]] = {
    "mosquitto": _find_mosquitto,
    "container": _find_image,
    "embedded": _find_embedded,
}
