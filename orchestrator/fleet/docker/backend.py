"""The docker backend: one unprivileged container and one internal network per device, limited by quota and tc."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import docker.errors
import docker.types
import msgspec

from edgebed.errors import FleetError, LimitError
from edgebed.limits.cgroups import PARENT, SLICE, Cgroup
from edgebed.limits.cpu_quota import CpuQuota, parse_quota
from edgebed.limits.shell import missing_tools
from edgebed.limits.throttle import Group, parse_docker_stats
from edgebed.link.connection import Address
from orchestrator.fleet import leftovers, ownership
from orchestrator.fleet.base import Enforcement
from orchestrator.fleet.docker.devices import (
    MOST_PROCESSES,
    NOWHERE,
    PLUGINS,
    SHARD,
    ContainerDevices,
    ExitWatch,
    Seen,
    agent_arguments,
    agent_environment,
    hostname,
)
from orchestrator.fleet.docker.image import ensure_image
from orchestrator.fleet.engine import DEVICE, FLEET, connect, engine_errors, remove_fleet, used_subnets
from orchestrator.fleet.host.checkup import HostNeeds
from orchestrator.fleet.named import NamedBackend, Opening
from orchestrator.fleet.network import links
from orchestrator.fleet.network.subnets import DOCKER_POOL, free_subnets, host_networks
from orchestrator.fleet.spec.profile import FleetSpec, Limits

BROKER = "/broker"
"""Where the container has the file with its broker's address and its password."""


class DockerBackend(ContainerDevices, NamedBackend):
    """One fleet of containers.

    Args:
        spec: the devices.
        fleet_id: unique; part of every label.
        notify: called with a line of progress (the first build of the image takes minutes).
        shaper: how links are shaped; None chooses automatically.
        plugins: folder of the plug-ins that the agents use.
    """

    enforcement = Enforcement.DOCKER
    name = "docker"
    needs = HostNeeds(engine=True)

    @classmethod
    def open(cls, opening: Opening) -> DockerBackend:
        return cls(opening.spec, opening.fleet_id, notify=opening.notify, plugins=opening.plugins)

    def __init__(
        self,
        spec: FleetSpec,
        fleet_id: str,
        *,
        notify: Callable[[str], None] = lambda line: None,
        shaper: links.Shaper | None = None,
        plugins: Path | None = None,
    ) -> None:
        super().__init__()
        self._plugins = plugins
        self._client = connect()
        self._fleet_id, self._notify, self._shaper = fleet_id, notify, shaper
        self._names = [device.name for device in spec.devices]
        self._labels = {FLEET: fleet_id, ownership.OWNER: str(ownership.this_process())}
        self._networks: dict[str, Any] = {}
        self._subnets: dict[str, IPv4Network] = {}
        self._access: dict[str, Address] = {}
        self._shards: dict[str, Path] = {}
        self._image, self._systemd = "", False
        self._taken_in: set[str] = set()  # containers whose processes Edgebed moved into a cgroup of its own
        self._files: ownership.OwnedFolder | None = None
        self._ending: set[str] = set()
        self._watch: ExitWatch | None = None

    # ---- life ----

    async def prepare(self) -> list[str]:
        await self._making.run(self._make)
        return [self.host_of(name) for name in self._names]

    def _make(self) -> None:
        with engine_errors("the networks could not be made"):
            leftovers.collect()
            plain = ensure_image(self._client, self._notify, self._making.go_on)
            self._shaper = self._shaper or links.choose(self._client, plain, self._labels)
            self._image = ensure_image(self._client, self._notify, self._making.go_on, self._plugins)
            self._systemd = self._client.info().get("CgroupDriver") == "systemd"
            taken = used_subnets(self._client) + ([] if missing_tools("ip") else host_networks())
            subnets = free_subnets(DOCKER_POOL, 29, taken)
            for name in self._names:
                self._making.go_on()
                self._networks[name], self._subnets[name] = self._make_network(name, subnets)

    def _make_network(self, name: str, subnets: Iterable[IPv4Network]) -> tuple[Any, IPv4Network]:
        """Make an internal bridge, which has a route only to the host's end. Uses small subnets of our own, because the
        engine's default pools are used up after about thirty networks."""
        for subnet in subnets:
            pool = docker.types.IPAMPool(subnet=str(subnet), gateway=str(subnet[1]))
            try:
                network = self._client.networks.create(
                    f"edgebed-{self._fleet_id}-{name}",
                    driver="bridge",
                    internal=True,
                    enable_ipv6=False,
                    ipam=docker.types.IPAMConfig(pool_configs=[pool]),
                    labels=self._labels | {DEVICE: name},
                )
                return network, subnet
            except docker.errors.APIError as error:
                if "overlaps" not in str(error):  # if it overlaps, another fleet took this subnet: try the next one
                    raise
        raise FleetError("no subnet is free", hint="docker network prune")

    def host_of(self, device: str) -> str:
        return str(self._subnets[device][1])

    async def start(self, access: Mapping[str, Address], shards: Mapping[str, Path]) -> None:
        self._access, self._shards = dict(access), {name: path.resolve() for name, path in shards.items()}
        self._files = ownership.OwnedFolder("edgebed-agents-")
        self._watch = ExitWatch(connect(), self._fleet_id, asyncio.get_running_loop(), self._died)
        await asyncio.gather(*(self._making.run(self._start_one, name) for name in self._names))

    def _start_one(self, name: str) -> None:
        with engine_errors(f"the container of {name} could not be started"):
            self._making.go_on()
            container = self._run(self._settings(name))
            container.reload()
            if links.is_ours(container):
                self._take_in(container)
            self._containers[name] = container

    def _take_in(self, container: Any) -> None:
        """Give the containers priority over other programs. If systemd would round the quota, also move the processes
        into a cgroup that systemd does not manage. If that fails, `confirm` refuses a rounded quota later."""
        with contextlib.suppress(LimitError, OSError):
            cgroup = Cgroup.of_process(links.pid_of(container))
            cgroup.favour()
            if self._systemd and cgroup.version == 2:
                cgroup.take_in()
                self._taken_in.add(container.id)

    def _run(self, settings: dict[str, Any]) -> Any:
        try:
            return self._client.containers.run(self._image, **settings)
        except docker.errors.APIError as error:
            if "ipv6" not in str(error):
                raise
        # The engine's kernel has no IPv6, so there is nothing to disable. The container exists but did not start.
        self._client.containers.get(settings["name"]).remove(force=True)
        return self._client.containers.run(self._image, **{k: v for k, v in settings.items() if k != "sysctls"})

    def _settings(self, name: str) -> dict[str, Any]:
        return {
            "name": f"edgebed-{self._fleet_id}-{name}",
            "hostname": hostname(name),
            "command": agent_arguments(self._fleet_id, name, plugins=PLUGINS if self._plugins else ""),
            "environment": agent_environment(BROKER),
            "volumes": {
                str(self._shards[name]): {"bind": SHARD, "mode": "ro"},
                str(self._broker_file(name)): {"bind": BROKER, "mode": "ro"},
                **({str(self._plugins): {"bind": PLUGINS, "mode": "ro"}} if self._plugins else {}),
            },
            "network": self._networks[name].name,
            "labels": self._labels | {DEVICE: name},
            "dns": [NOWHERE],
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges"],
            "read_only": True,
            "tmpfs": {"/tmp": "size=256m"},
            "pids_limit": MOST_PROCESSES,
            "cgroup_parent": SLICE if self._systemd else f"/{PARENT}",
            "sysctls": {"net.ipv6.conf.all.disable_ipv6": "1"},
            "log_config": docker.types.LogConfig(type="json-file", config={"max-size": "1m"}),
            "restart_policy": {"Name": "no"},  # an agent that ended because it had no orchestrator must stay ended
            "detach": True,
        }

    def _broker_file(self, name: str) -> Path:
        """The file that tells the device's broker and password. In the container its user may read it; on this host the
        folder keeps others out."""
        assert self._files is not None
        path = self._files.path / name
        path.unlink(missing_ok=True)
        path.write_text(self._access[name].url)
        path.chmod(0o444)
        return path

    async def restart(self, device: str) -> None:
        """Make a new container. Restarting the old one would keep its limits, and they would slow the agent's start."""
        self._ending.add(device)
        try:
            await asyncio.to_thread(self._remove_container, device)
            self._limits.pop(device, None)
        finally:
            self._ending.discard(device)
        await self._making.run(self._start_one, device)

    def _remove_container(self, device: str) -> None:
        container = self._containers.pop(device, None)
        if container is not None:
            with contextlib.suppress(docker.errors.APIError):
                container.remove(force=True)

    def _died(self, container_id: str, device: str, why: str) -> None:
        container = self._containers.get(device)
        if container is not None and container.id == container_id and device not in self._ending:
            self._exit(device, why)

    async def _close(self) -> None:
        self._ending = set(self._names)
        if self._watch is not None:
            self._watch.close()
        await self._making.end()
        await asyncio.to_thread(remove_fleet, self._client, self._fleet_id)
        if self._files is not None:
            self._files.close()
        self._client.close()

    # ---- limits ----

    def _set_quota(self, device: str, container: Any, limits: Limits) -> None:
        if container.id in self._taken_in:
            Cgroup.of_process(links.pid_of(container)).set(limits)
        else:
            super()._set_quota(device, container, limits)

    def _look(self, device: str, container: Any) -> Seen:
        shaper = self._shaper_of(device)
        group, source = _group_of(container, shaper)
        alive = container.status == "running"
        return Seen(
            group,
            shaper.read(container) if alive else (links.NOTHING, links.NOTHING),
            shaper.counters(container) if alive else (0, 0),
            {"shaped from": shaper.route, "read from": source},
        )

    def _shaper_of(self, device: str) -> links.Shaper:
        if self._shaper is None:
            raise FleetError("the fleet was not prepared", hint="call prepare first")
        return self._shaper


def _group_of(container: Any, shaper: links.Shaper) -> tuple[Group, str]:
    """Limits and use, from the kernel's files if they are visible, otherwise from the engine. The engine reports the
    quota that was requested; the helper then reads the one that is set in the kernel."""
    if links.is_ours(container):
        with contextlib.suppress(LimitError, OSError):
            return Cgroup.of_process(links.pid_of(container)).read(), "cgroup files"
    group = parse_docker_stats(container.attrs["HostConfig"], container.stats(stream=False))
    if files := shaper.quota(container):
        dump = "; ".join(f"{name}: {text}" for name, text in files.items())
        return msgspec.structs.replace(group, quota=_quota_in(files), dump=dump), "docker inspect and the helper"
    return group, "docker inspect"


def _quota_in(files: Mapping[str, str]) -> CpuQuota | None:
    try:
        return parse_quota(files)
    except (KeyError, ValueError) as error:
        raise LimitError(f"the helper cannot read the quota: {error!r}", hint="enable the cpu controller") from None
