"""Brings the agent's image to the nodes of a Swarm: into a registry, or straight into their engines. Calls block."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import docker
import docker.errors

from edgebed.errors import FleetError
from orchestrator.fleet.docker.image import REPOSITORY, ensure_image
from orchestrator.fleet.engine import connect, engine_errors
from orchestrator.fleet.spec.swarm import SOCKET

TIMEOUT_S = 1800
PIECE = 2 << 20
LOOK_S = 0.1

REFUSED = (
    "docker login; an engine uses a registry without TLS only if its /etc/docker/daemon.json names it: "
    '{"insecure-registries": ["HOST:PORT"]}'
)


def push_image(registry: str, engines: Sequence[str], notify: Callable[[str], None]) -> str:
    """Build the image where it is missing, and bring it there; returns its name.

    Args:
        registry: `host:port/path`; "": none.
        engines: addresses of engines, `ssh://user@host` or `unix:///path`. Those that have it are left alone.

    Raises:
        FleetError: it cannot be built, or an engine or the registry refuses it.
    """
    with contextlib.closing(connect()) as client:
        tag = ensure_image(client, notify)
        image = client.images.get(tag)
        name = f"{registry}/{tag}" if registry else tag
        if registry:
            _push(client, image, name, notify)
        for address in engines:
            with engine_at(address) as engine:
                _load(image, tag, engine, address, notify)
    return name


def pushed(image: Any, registry: str) -> str:
    """An image by registry and hash of content, so that every node runs the same one. Raises FleetError: this engine
    has not pushed it there."""
    for name in image.attrs.get("RepoDigests") or []:
        if str(name).startswith(f"{registry}/{REPOSITORY}@"):
            return str(name)
    raise FleetError(
        f"the agent's image was not pushed from here to {registry}",
        hint="edgebed fleet push-image FLEET pushes it there (docs/swarm.md)",
    )


@contextlib.contextmanager
def engine_at(address: str) -> Iterator[Any]:
    """A client of the engine at `ssh://user@host[:port][/socket]` or `unix:///path`. Raises FleetError."""
    with contextlib.ExitStack() as stack:
        where = f"unix://{stack.enter_context(_tunnel(address))}" if address.startswith("ssh://") else address
        try:
            engine = stack.enter_context(contextlib.closing(docker.DockerClient(where, timeout=TIMEOUT_S)))
        except (docker.errors.DockerException, OSError) as error:
            raise FleetError(
                f"no engine answers at {address}: {error}",
                hint="give ssh://user@host or unix:///path; the user must be allowed to use the engine (group docker)",
            ) from None
        yield engine


@contextlib.contextmanager
def _tunnel(address: str) -> Iterator[Path]:
    """A socket here that leads to the engine's socket on another host, by `ssh` with its own keys and settings."""
    with tempfile.TemporaryDirectory(prefix="edgebed-ssh-") as folder:
        socket, said = Path(folder) / "engine.sock", Path(folder) / "said"
        try:
            with said.open("wb") as words:
                process = subprocess.Popen(_ssh(address, socket), stdin=subprocess.DEVNULL, stderr=words)
        except OSError as error:
            raise FleetError(f"ssh cannot be started: {error}", hint="apt install openssh-client") from None
        try:
            while not socket.exists():
                if process.poll() is not None:
                    why = said.read_text(errors="replace").strip() or f"exit code {process.returncode}"
                    raise FleetError(f"no connection to {address}: {why}", hint="try `ssh` to it by hand")
                time.sleep(LOOK_S)
            yield socket
        finally:
            process.terminate()
            process.wait()


def _ssh(address: str, socket: Path) -> list[str]:
    """Raises FleetError."""
    url = urlsplit(address)
    try:
        port = ["-p", str(url.port)] if url.port else []
    except ValueError:
        port = None
    if not url.hostname or port is None or url.password:
        raise FleetError(f"{address} is no address of an engine", hint="write ssh://user@host or ssh://user@host:port")
    user = ["-l", url.username] if url.username else []
    forward = f"{socket}:{url.path if len(url.path) > 1 else SOCKET}"
    return ["ssh", "-N", "-T", "-o", "ExitOnForwardFailure=yes", "-L", forward, *user, *port, "--", url.hostname]


def _load(image: Any, tag: str, engine: Any, address: str, notify: Callable[[str], None]) -> None:
    with engine_errors(f"{address} does not take the image"):
        if image.id in {each.id for each in engine.images.list()}:
            notify(f"{address} has it")
            return
        notify(f"loading it into {address}")
        engine.images.load(image.save(chunk_size=PIECE, named=tag))


def _push(client: Any, image: Any, tag: str, notify: Callable[[str], None]) -> None:
    notify(f"pushing {tag}")
    with engine_errors(f"the registry does not take {tag}"):
        image.tag(tag)
        for event in client.images.push(tag, stream=True, decode=True):
            if "error" in event:
                raise FleetError(f"the registry does not take {tag}: {event['error']}", hint=REFUSED)
