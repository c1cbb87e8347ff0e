"""Limits and disturbances of devices that are containers, on this host's engine or on that of another host."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

import docker.errors
import msgspec

from edgebed.errors import FleetError, LimitError
from edgebed.limits.spec import NONE_SET, Held, Limits
from edgebed.limits.throttle import Group, Shaped, confirm, held_by_kernel, quota_us
from orchestrator.fleet.base import ALONE, INSTRUCTIONS
from orchestrator.fleet.engine import DEVICE, FLEET, engine_errors
from orchestrator.fleet.making import Making
from orchestrator.fleet.network import links
from orchestrator.fleet.rival import LOOP, shares

SHARD, PLUGINS = "/shard.safetensors", "/plugins"
MOST_PROCESSES = 1024
"""Limit of processes and threads of one device: many times what an agent uses."""

NOWHERE = "203.0.113.1"
"""The DNS server of a container: an address reserved for documentation, so no name resolves. Otherwise the engine might
ask the host's resolver for the container, which would bypass the shaped link."""

RIVALS = "/tmp/rivals"
"""The file in a container with the process numbers of its rivals."""


def agent_environment(broker_file: str) -> dict[str, str]:
    """Of a container with an agent: the file in it that tells its broker and password (`docker inspect` shows the
    environment), and what this process knows of ALONE and INSTRUCTIONS."""
    handed_on = {name: os.environ[name] for name in (ALONE, *INSTRUCTIONS) if name in os.environ}
    return {"EDGEBED_BROKER_FILE": broker_file, **handed_on}


def agent_arguments(fleet_id: str, device: str, shard: str = SHARD, plugins: str = "") -> list[str]:
    plugged = ["--plugins", plugins] if plugins else []
    return ["--fleet", fleet_id, "--device", device, "--shard", shard, *plugged]


def hostname(device: str) -> str:
    return device.replace("_", "-").replace(".", "-")


class Seen(msgspec.Struct, frozen=True):
    """What a kernel holds of one container. `shaped`: uplink and downlink; `counted`: bytes up and down."""

    group: Group
    shaped: tuple[Shaped, Shaped]
    counted: tuple[int, int]
    details: dict[str, str]


class ContainerDevices(abc.ABC):
    """The part of a backend that works on containers that run."""

    def __init__(self) -> None:
        super().__init__()
        self._limits: dict[str, Limits] = {}
        self._containers: dict[str, Any] = {}  # as they were when they were started
        self._making = Making()

    def _container(self, device: str) -> Any:
        """The device's container as it is now. Raises FleetError where it has none."""
        container = self._containers.get(device)
        if container is None:
            raise FleetError(f"{device} has no container", hint="start or restart it first")
        with engine_errors(f"the container of {device} is gone"):
            container.reload()
        return container

    @abc.abstractmethod
    def _shaper_of(self, device: str) -> links.Shaper: ...

    @abc.abstractmethod
    def _look(self, device: str, container: Any) -> Seen: ...

    def _set_quota(self, device: str, container: Any, limits: Limits) -> None:
        """Set CPU and memory through the container's engine."""
        memory = limits.memory_mib * 2**20
        try:
            container.update(
                cpu_period=limits.period_us, cpu_quota=quota_us(limits), mem_limit=memory, memswap_limit=memory
            )
        except docker.errors.APIError as error:
            raise LimitError(
                f"{device}: the engine refuses its limits: {error.explanation or error}",
                hint="more memory in the profile, or a kernel with CFS quotas (CONFIG_CFS_BANDWIDTH)",
            ) from None

    # ---- limits ----

    async def limit(self, device: str, limits: Limits) -> Held:
        await self._making.run(self._set, device, limits)
        self._limits[device] = limits
        return confirm(limits, await self.held(device))

    def _set(self, device: str, limits: Limits) -> None:
        container = self._container(device)
        self._set_quota(device, container, limits)
        self._shaper_of(device).shape(container, limits)

    async def set_rates(self, device: str, limits: Limits) -> tuple[int, int]:
        rates = await self._making.run(lambda: self._shaper_of(device).set_rates(self._container(device), limits))
        self._limits[device] = limits
        return rates

    async def held(self, device: str) -> Held:
        return await asyncio.to_thread(self._read, device)

    def _read(self, device: str) -> Held:
        container = self._container(device)
        seen = self._look(device, container)
        return held_by_kernel(
            device,
            self._limits.get(device, NONE_SET),
            seen.group,
            seen.shaped,
            seen.counted,
            alive=container.status == "running",
            details={**seen.details, "cgroup": seen.group.dump},
        )

    # ---- disturbances ----

    async def set_link(self, device: str, up: bool) -> str:
        return await self._making.run(lambda: self._shaper_of(device).set_link(self._container(device), up))

    async def set_frozen(self, device: str, frozen: bool) -> str:
        return await asyncio.to_thread(self._freeze, device, frozen)

    def _freeze(self, device: str, frozen: bool) -> str:
        container = self._container(device)
        if (container.status == "paused") != frozen:
            with engine_errors(f"{device} could not be {'frozen' if frozen else 'thawed'}"):
                (container.pause if frozen else container.unpause)()
        return f"container {self._container(device).status}"

    async def set_rival(self, device: str, cpus: float) -> str:
        return await self._making.run(self._compete, device, cpus)

    def _compete(self, device: str, cpus: float) -> str:
        """Each rival writes its number into a file, by which it is ended."""
        container = self._container(device)
        with engine_errors(f"no process could compete in {device}"):
            container.exec_run(["sh", "-c", f"[ ! -e {RIVALS} ] || kill -9 $(cat {RIVALS}); rm -f {RIVALS}"])
            for share in shares(cpus):
                begin = f'echo $$ >> {RIVALS}; exec python3 -I -S -c "$1" "$2"'
                container.exec_run(["sh", "-c", begin, "rival", LOOP, str(share)], detach=True)
        return f"busy processes in its container: {len(shares(cpus))}"

    async def stop(self, device: str) -> None:
        await asyncio.to_thread(self._kill, device)

    def _kill(self, device: str) -> None:
        with engine_errors(f"the container of {device} could not be ended"):
            self._container(device).kill()


class ExitWatch:
    """Listens in its own thread for containers that end, and reports them in the event loop.

    Args:
        client: of their engine; for this watch alone, which closes it.
        died: called with the container's id, the device, and why.
    """

    def __init__(
        self, client: Any, fleet_id: str, loop: asyncio.AbstractEventLoop, died: Callable[[str, str, str], None]
    ) -> None:
        self._client, self._loop, self._died = client, loop, died
        self._closed = False
        self._starved: set[str] = set()  # containers in which the kernel killed a process because memory ran out
        self._events = self._client.events(
            decode=True, filters={"label": f"{FLEET}={fleet_id}", "event": ["die", "oom"], "type": "container"}
        )
        threading.Thread(target=self._listen, name="edgebed-exits", daemon=True).start()

    def _listen(self) -> None:
        with contextlib.suppress(Exception):  # the stream ends when the engine ends, or when close() closes it
            for event in self._events:
                attributes = event["Actor"]["Attributes"]
                if event["Action"] == "oom":
                    self._starved.add(event["Actor"]["ID"])
                elif DEVICE in attributes and not self._closed:
                    late_s = 0.3 if attributes.get("exitCode") == "137" else 0.0  # killed: "oom" may come after "die"
                    threading.Timer(late_s, self._report, (event["Actor"]["ID"], attributes)).start()

    def _report(self, container_id: str, attributes: Mapping[str, str]) -> None:
        why = self._why(container_id, attributes)
        if not self._closed:
            self._loop.call_soon_threadsafe(self._died, container_id, attributes[DEVICE], why)

    def _why(self, container_id: str, attributes: Mapping[str, str]) -> str:
        why, said = f"its container ended with exit code {attributes.get('exitCode', '?')}", ""
        with contextlib.suppress(docker.errors.APIError):
            container = self._client.containers.get(container_id)
            if container.attrs["State"].get("OOMKilled") or container_id in self._starved:
                why = "its container was killed: out of memory"
            lines = container.logs(tail=3).decode(errors="replace").split("\n")
            said = " ".join(line.strip() for line in lines if line.strip())[:300]
        return f"{why}; its last words: {said}" if said else why

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(Exception):
            self._events.close()
        self._client.close()
