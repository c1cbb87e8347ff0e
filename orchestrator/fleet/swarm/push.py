"""Brings the agent's image to the nodes of a Swarm: into a registry, or straight into their engines. Calls block."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import docker
import docker.errors

from edgebed.errors import FleetError
from orchestrator.fleet.engine import connect, engine_errors
from orchestrator.fleet.image import ensure_image

TIMEOUT_S = 1800
PIECE = 2 << 20


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
        if registry:
            tag = f"{registry}/{tag}"
            _push(client, image, tag, notify)
        for address in engines:
            with contextlib.closing(_engine(address)) as engine:
                _load(image, engine, address, notify)
    return str(tag)


def _engine(address: str) -> Any:
    try:
        return docker.DockerClient(address, timeout=TIMEOUT_S, use_ssh_client=address.startswith("ssh://"))
    except (docker.errors.DockerException, OSError) as error:
        raise FleetError(
            f"no engine answers at {address}: {error}", hint="give ssh://user@host or unix:///path"
        ) from None


def _load(image: Any, engine: Any, address: str, notify: Callable[[str], None]) -> None:
    with engine_errors(f"{address} does not take the image"):
        if image.id in {each.id for each in engine.images.list()}:
            notify(f"{address} has it")
            return
        notify(f"loading it into {address}")
        engine.images.load(image.save(chunk_size=PIECE, named=True))


def _push(client: Any, image: Any, tag: str, notify: Callable[[str], None]) -> None:
    notify(f"pushing {tag}")
    with engine_errors(f"the registry does not take {tag}"):
        image.tag(tag)
        for event in client.images.push(tag, stream=True, decode=True):
            if "error" in event:
                raise FleetError(f"the registry does not take {tag}: {event['error']}", hint="docker login")
