"""Mosquitto in a container."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Any

from edgebed.errors import LinkError
from orchestrator.broker.mosquitto import broker_user, socket_path, write_files
from orchestrator.broker.runner import Listen, Runner
from orchestrator.fleet.ownership import BROKER, OWNER, this_process

IMAGES = ("eclipse-mosquitto:2", "eclipse-mosquitto:latest")
MOST_PROCESSES = 32
MOUNT = "/edgebed"
"""Where the container has the folder with its files."""


def find() -> Runner | None:
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


class _Container:
    """Mosquitto from an image that is already here. It has no right but to listen. It uses the host's network: devices
    reach it at the host's ends of their links, and Docker forwards no published port between networks."""

    kind = "mosquitto container"
    inherits = False

    def __init__(self, client: Any, image: str) -> None:
        self._client, self._image = client, image
        self._container: Any = None

    async def start(self, listen: Listen, folder: Path) -> None:
        import docker.errors

        write_files(listen, folder, owner=broker_user(), seen_as=MOUNT)
        try:
            self._container = await asyncio.to_thread(self._create, folder)
            await asyncio.to_thread(self._container.start)
            await asyncio.to_thread(self._container.reload)  # so that `pid` knows it
        except docker.errors.DockerException as error:
            raise LinkError(f"the container did not start: {error}") from None

    def _create(self, folder: Path) -> Any:
        user = broker_user()
        return self._client.containers.create(
            self._image,
            entrypoint=["mosquitto", "-c", f"{MOUNT}/mosquitto.conf"],
            network_mode="host",
            user=f"{os.geteuid()}:{os.getegid()}" if user is None else f"{user}:{user}",
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            read_only=True,
            pids_limit=MOST_PROCESSES,
            volumes={
                str(folder): {"bind": MOUNT, "mode": "ro"},
                str(socket_path(folder).parent): {"bind": str(socket_path(Path(MOUNT)).parent), "mode": "rw"},
            },
            labels={BROKER: "mosquitto", OWNER: str(this_process())},
        )

    async def stop(self) -> None:
        import docker.errors

        container, self._container = self._container, None
        if container is not None:
            with contextlib.suppress(docker.errors.DockerException):
                await asyncio.to_thread(container.remove, force=True)

    def pid(self) -> int | None:
        """None too where the engine runs on another host."""
        state = {} if self._container is None else self._container.attrs.get("State") or {}
        with contextlib.suppress(OSError):
            pid = int(state.get("Pid") or 0)
            return pid if Path(f"/proc/{pid}/comm").read_text().strip() == "mosquitto" else None
        return None

    def failure(self) -> str:
        import docker.errors

        try:
            self._container.reload()
            return "" if self._container.status in ("created", "running") else str(self._container.logs(tail=3))
        except docker.errors.DockerException as error:
            return str(error)
