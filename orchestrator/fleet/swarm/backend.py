"""The backend `swarm`: devices as services on the nodes of a Docker Swarm, each node under a helper of its own.

The limits are those of the docker backend, set and read by the same code through the engine of the device's node, which
the node's helper gives to this process over TLS.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
import math
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import docker.types
import msgspec

from edgebed.errors import FleetError
from edgebed.link.connection import Address
from orchestrator.fleet import ownership
from orchestrator.fleet.base import Enforcement
from orchestrator.fleet.docker.devices import (
    MOST_PROCESSES,
    NOWHERE,
    PLUGINS,
    ContainerDevices,
    ExitWatch,
    Seen,
    agent_arguments,
    agent_environment,
    hostname,
)
from orchestrator.fleet.docker.image import ensure_image
from orchestrator.fleet.engine import DEVICE, FLEET, connect, engine_errors, used_subnets
from orchestrator.fleet.host.checkup import HostNeeds
from orchestrator.fleet.many_hosts import Certifier, FarEnds, NodeReading, TlsListener
from orchestrator.fleet.named import NamedBackend, Opening
from orchestrator.fleet.network.subnets import SWARM_POOL, free_subnets
from orchestrator.fleet.spec.profile import FleetSpec
from orchestrator.fleet.spec.swarm import SwarmFile
from orchestrator.fleet.swarm import nodes as on_node
from orchestrator.fleet.swarm.admission import AdmittedToSwarm, admit_swarm
from orchestrator.fleet.swarm.clocks import drift_note
from orchestrator.fleet.swarm.far_end import nodes_ends
from orchestrator.fleet.swarm.helpers import PORTS, start_helpers, write_credentials
from orchestrator.fleet.swarm.manager import SECRETS, Manager, network_of
from orchestrator.fleet.swarm.network import dilation_with_network, rates_on
from orchestrator.fleet.swarm.node_link import NodeLink, Told
from orchestrator.fleet.swarm.node_shaper import NodeShaper
from orchestrator.fleet.swarm.placement import describe, place_again, quotas
from orchestrator.fleet.swarm.push import pushed

SHARD_FOLDER, SHARD = "/shard", "shard.safetensors"
BROKER = "broker"
"""The file of a device's secret."""

START_S = 120.0


class SwarmBackend(ContainerDevices, NamedBackend):
    """One fleet on a Swarm.

    Args:
        admitted: as `admission.admit_swarm` found it.
        ca: of this run.
        folder: for the orchestrator's certificate and key.
        plugins: folder of the plug-ins that the agents use.
    """

    enforcement = Enforcement.DOCKER
    name = "swarm"
    needs = HostNeeds(engine=True, swarm=True)

    @classmethod
    def admit(cls, name: str, fleet_id: str, fleets: Sequence[FleetSpec], setting: str | float) -> AdmittedToSwarm:
        return admit_swarm(name, fleet_id, fleets, setting)

    @classmethod
    def open(cls, opening: Opening) -> SwarmBackend:
        admitted, folder = opening.admitted, opening.folder
        assert isinstance(admitted, AdmittedToSwarm)
        ca = opening.certifier(folder)
        return cls(opening.spec, opening.fleet_id, admitted, ca, folder, notify=opening.notify, plugins=opening.plugins)

    def __init__(
        self,
        spec: FleetSpec,
        fleet_id: str,
        admitted: AdmittedToSwarm,
        ca: Certifier,
        folder: Path,
        *,
        notify: Callable[[str], None] = lambda line: None,
        plugins: Path | None = None,
    ) -> None:
        super().__init__()
        self._plugins = plugins
        self._spec, self._fleet_id, self._admitted, self._notify = spec, fleet_id, admitted, notify
        self._file = spec.swarm or SwarmFile()
        self._placement, self._ca, self._folder = admitted.placement, ca, folder
        self._names = [device.name for device in spec.devices]
        self._labels = {ownership.OWNER: str(ownership.this_process()), FLEET: fleet_id}
        self._client = connect()
        self._manager = Manager(self._client, self._labels)
        self._address = self._file.address or self._manager.address
        self._links: dict[str, NodeLink] = {}
        self._shapers: dict[str, NodeShaper] = {}
        self._services: dict[str, str] = {}
        self._access: dict[str, Address] = {}
        self._secrets: dict[str, dict[str, str]] = {}
        self._shards: dict[str, Path] = {}
        self._first: dict[str, Told] = {}  # by node, what its helper told at the start, and last
        self._last: dict[str, Told] = {}
        self._drifted: set[str] = set()  # nodes of whose clocks a line was said
        self._lost: dict[str, str] = {}  # nodes, and why
        self._moved: set[str] = set()  # devices that were placed anew
        self._closing = False
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._exits: list[ExitWatch] = []
        self._plain, self._image, self._subnet = "", "", IPv4Network("0.0.0.0/0")

    # ---- life ----

    async def prepare(self) -> list[str]:
        """Start the node helpers, compare clocks, prove the nodes' cores, make the network on each, and prove that
        between them. The broker needs no address that agents reach, but that of `tls_listener`."""
        self._plain = await self._making.run(self._ready_image, None)
        self._image = await self._making.run(self._ready_image, self._plugins)
        await asyncio.to_thread(self._manager.remove_dead)
        port = self._file.helper_port or random.choice(PORTS)
        credentials = write_credentials(self._folder, self._ca)
        self._links = await start_helpers(
            self._manager, self._placement.nodes, self._plain, self._fleet_id, self._ca, credentials, port
        )
        self._first = await on_node.compare_clocks(self._links, self._notify)
        await self._making.run(self._make)
        await on_node.prove(list(self._links.values()))
        await self._measure_network()
        for line in describe(self._placement, self._admitted.dilation, quotas(self._spec)):
            self._notify(line)
        for id, link in self._links.items():
            hear = functools.partial(self._hear, id)
            self._watches[id] = asyncio.create_task(on_node.watch(link, hear, self._lose(id)))
        return []

    async def _measure_network(self) -> None:
        admitted = self._admitted
        rates = rates_on(self._placement, admitted.fleets)
        factor = await dilation_with_network(self._links, rates, admitted.dilation, admitted.may_grow, self._notify)
        if factor > admitted.dilation:
            self._admitted = admitted.with_dilation(factor)

    def _hear(self, node: str, told: Told) -> None:
        self._last[node] = told
        note = drift_note(self._first[node].steady, told.steady)
        if note and node not in self._drifted:
            self._drifted.add(node)
            self._notify(note)

    def dilation(self) -> tuple[float, str]:
        return self._admitted.dilation, self._admitted.set_by

    def _ready_image(self, plugins: Path | None) -> str:
        """The image by its id, which is the hash of its content: then no node runs another one of the same name. Only
        devices get the one with the packages of plug-ins; helpers may do more than these packages are trusted with."""
        tag = ensure_image(self._client, self._notify, self._making.go_on, plugins)
        image = self._client.images.get(tag)
        return pushed(image, self._file.registry) if self._file.registry else str(image.id)

    def _make(self) -> None:
        taken: list[IPv4Network] = []
        for link in self._links.values():
            self._making.go_on()
            on_node.remove_dead(link.engine)
            taken += used_subnets(link.engine)
        self._subnet = next(free_subnets(SWARM_POOL, 22, taken))
        for id, link in self._links.items():
            self._making.go_on()
            on_node.configure_network(
                link.engine, f"{self._network}-here", str(self._subnet), str(self._subnet[1]), self._labels
            )
            self._shapers[id] = NodeShaper(link.engine, self._plain, self._labels)
        self._manager.make_network(self._network, f"{self._network}-here")

    @property
    def _network(self) -> str:
        return network_of(self._fleet_id)

    def host_of(self, device: str) -> str:
        return str(self._subnet[1])

    def nodes(self) -> list[NodeReading]:
        return [
            on_node.reading(self._links[id].node, self._first[id], last, self._cpus_on(id))
            for id, last in self._last.items()
        ]

    def _cpus_on(self, node: str) -> float:
        """The quotas of its devices together; without end where one has no limits yet."""
        limits = [self._limits.get(device) for device in self._placement.on(node)]
        return sum(math.inf if each is None else each.cpus for each in limits)

    def tls_listener(self) -> TlsListener:
        key, certificate = self._ca.server_pair([self._address], dt.datetime.now(dt.UTC))
        return TlsListener(self._address, self._ca.pem, certificate, key)

    def far_ends(self) -> FarEnds:
        return nodes_ends(self._alive_links(), self._placement.node_of, self.host_of(""))

    def _alive_links(self) -> dict[str, NodeLink]:
        return {id: link for id, link in self._links.items() if id not in self._lost}

    async def start(self, access: Mapping[str, Address], shards: Mapping[str, Path]) -> None:
        self._access, self._shards = dict(access), {name: path.resolve() for name, path in shards.items()}
        loop, any_access = asyncio.get_running_loop(), next(iter(access.values()))
        for link in self._links.values():
            engine = await asyncio.to_thread(link.new_engine)
            self._exits.append(ExitWatch(engine, self._fleet_id, loop, self._died))
            await link.call(
                "forward",
                address=any_access.host,
                port=any_access.port,
                broker=self._address,
                broker_port=any_access.port,
            )
        await self._making.run(self._start, self._names)

    def _start(self, devices: Collection[str]) -> None:
        """Deliver the shards of these devices, start their services and wait until all run."""
        for id, link in self._links.items():
            self._making.go_on()
            there = {name: self._shards[name] for name in self._placement.on(id) if name in devices}
            if there:
                on_node.deliver(link.engine, self._plain, self._fleet_id, there, SHARD, self._labels, self._plugins)
        started = {}
        for name in devices:
            self._making.go_on()
            started[name] = self._services[name] = self._manager.run(
                f"edgebed-{self._fleet_id}-{name}", self._placement.node_of[name], self._settings(name),
                network=self._network, labels={**self._labels, DEVICE: name}, most_processes=MOST_PROCESSES,
            )  # fmt: skip
        running = self._manager.wait_running(started, START_S, self._not_lost(devices))
        for name, container in running.items():
            with engine_errors(f"the container of {name} is gone"):
                self._containers[name] = self._link_of(name).engine.containers.get(container)

    def _not_lost(self, devices: Collection[str]) -> Callable[[], None]:
        """Raises FleetError once the node of one of them is lost, or the fleet is being closed."""

        def check() -> None:
            self._making.go_on()
            for device in devices:
                if (node := self._placement.node_of[device]) in self._lost:
                    raise FleetError(f"{device} did not start: its node is lost ({self._lost[node]})")

        return check

    def _settings(self, name: str) -> dict[str, Any]:
        volume = on_node.volume_of(self._fleet_id, name)
        return {
            "image": self._image,
            "args": agent_arguments(
                self._fleet_id, name, f"{SHARD_FOLDER}/{SHARD}", SHARD_FOLDER + PLUGINS if self._plugins else ""
            ),
            "env": agent_environment(f"{SECRETS}/{BROKER}"),
            "secrets": [self._secret(name)],
            "hostname": hostname(name),
            "mounts": [
                docker.types.Mount(SHARD_FOLDER, volume, type="volume", read_only=True, no_copy=True),
                docker.types.Mount("/tmp", None, type="tmpfs", tmpfs_size=256 << 20),
            ],
            "dns_config": docker.types.DNSConfig(nameservers=[NOWHERE]),
            "cap_drop": ["ALL"],
            "read_only": True,
        }

    def _secret(self, name: str) -> dict[str, str]:
        """That tells the device's broker and password; made with its first container."""
        if name not in self._secrets:
            url = self._access[name].url.encode()
            self._secrets[name] = self._manager.make_secret(f"edgebed-{self._fleet_id}-{name}", url, BROKER, 0o444)
        return self._secrets[name]

    async def restart(self, device: str) -> None:
        """Make a new container; on another node if its own is lost, once for each device. Raises FleetError."""
        self._containers.pop(device, None)
        self._limits.pop(device, None)
        await asyncio.to_thread(self._manager.remove_service, self._services.pop(device, ""))
        while True:
            if (node := self._placement.node_of[device]) in self._lost:
                self._move(device)
            try:
                await self._making.run(self._start, [device])
                return
            except FleetError:
                if not await self._becomes_lost(node):
                    raise

    async def _becomes_lost(self, node: str) -> bool:
        """Whether a node on which something failed turns out to be lost."""
        await asyncio.wait([self._watches[node]], timeout=2 * on_node.LOST_S)
        return node in self._lost

    def _move(self, device: str) -> None:
        """Give a device another node."""
        lost = self._placement.node(self._placement.node_of[device])
        why = f"{device} was on {lost.name}, which is lost ({self._lost[lost.id]})"
        if device in self._moved:
            raise FleetError(f"{why}; it was placed anew once before")
        cpus = {name: share / self._admitted.dilation for name, share in quotas(self._spec).items()}
        placement, homeless = place_again(self._placement, cpus, [device], self._lost)
        if homeless:
            rows = "; ".join(describe(placement, self._admitted.dilation, quotas(self._spec)))
            raise FleetError(
                f"{why}, and no other node has room for {cpus[device]:.3g} CPUs: {rows}",
                hint="a larger dilation leaves room for the devices of a node that is lost",
            )
        self._moved.add(device)
        self._placement = placement
        self._notify(f"{why}; it starts on {placement.node(placement.node_of[device]).name}")

    def _died(self, container_id: str, device: str, why: str) -> None:
        container = self._containers.get(device)
        if container is not None and container.id == container_id and not self._closing:
            del self._containers[device]
            self._exit(device, why)

    def _lose(self, node: str) -> Callable[[str], None]:
        def lost(why: str) -> None:
            self._lost[node] = why
            for device in self._placement.on(node):
                if self._containers.pop(device, None) is not None:  # otherwise it is being started
                    self._exit(device, f"its node {self._links[node].node.name} is lost: {why}")

        return lost

    async def _close(self) -> None:
        self._closing = True
        for watch in self._watches.values():
            watch.cancel()
        for exit_watch in self._exits:
            exit_watch.close()
        await self._making.end()
        await asyncio.to_thread(self._remove)
        for link in self._links.values():
            link.close()
        self._client.close()

    def _remove(self) -> None:
        """Devices first; the helpers, through which the nodes are cleaned, last. A node that is lost keeps what it has
        until the next fleet starts on it."""
        for service in self._services.values():
            self._manager.remove_service(service)
        links = list(self._alive_links().values())
        for link in links:
            on_node.remove_containers(link.engine, self._fleet_id)
        self._manager.remove_network(self._fleet_id)
        for link in links:
            on_node.remove_network(link.engine, f"{self._network}-here")
        self._manager.remove_all(self._fleet_id)

    # ---- containers ----

    def _link_of(self, device: str) -> NodeLink:
        return self._links[self._placement.node_of[device]]

    def _shaper_of(self, device: str) -> NodeShaper:
        return self._shapers[self._placement.node_of[device]]

    def _look(self, device: str, container: Any) -> Seen:
        if container.status != "running":
            raise FleetError(f"the container of {device} is {container.status}")
        shaper, node = self._shaper_of(device), self._link_of(device).node
        details = {"node": node.name, "shaped from": shaper.route, "read from": "the node's kernel"}
        return msgspec.structs.replace(shaper.look(container), details=details)
