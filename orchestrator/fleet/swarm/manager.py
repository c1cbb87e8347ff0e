"""The Swarm's manager: its nodes, and the services, secrets and networks of a fleet. Calls block."""

from __future__ import annotations

import contextlib
import datetime as dt
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import docker.errors
import docker.types
import msgspec

from edgebed.errors import FleetError
from orchestrator.fleet.engine import FLEET, engine_errors, make_network
from orchestrator.fleet.ownership import is_orphan
from orchestrator.fleet.swarm.placement import Found

GONE_S, LOOK_S = 20.0, 0.1
SECRETS = "/run/secrets"
RUNNING, FAILED = "running", ("failed", "rejected", "complete", "shutdown", "orphaned", "remove")


class Task(msgspec.Struct, frozen=True):
    """What became of a service's container: `error` is "" while nothing went wrong; `at_s`: when it got into this
    state, in seconds since 1970 on its node's clock."""

    service: str
    state: str
    container: str
    error: str
    at_s: float


class Manager:
    """The engine that manages the Swarm.

    Args:
        client: of an engine that manages a Swarm.
        labels: of everything that is made.

    Raises:
        FleetError: the engine manages no Swarm.
    """

    def __init__(self, client: Any, labels: dict[str, str]) -> None:
        self._client, self._labels = client, labels
        with engine_errors("the Swarm does not answer"):
            swarm = client.info().get("Swarm") or {}
        if not swarm.get("ControlAvailable"):
            raise FleetError(
                f"this engine manages no Swarm (it is {swarm.get('LocalNodeState') or 'inactive'})",
                hint="docker swarm init here, and docker swarm join on the other hosts; or run this on a manager "
                "(DOCKER_HOST)",
            )
        self.node_id, self.address = str(swarm["NodeID"]), str(swarm["NodeAddr"])

    def nodes(self) -> list[Found]:
        with engine_errors("the Swarm's nodes cannot be listed"):
            return [_found(node) for node in self._client.api.nodes()]

    def make_secret(self, name: str, data: bytes, file: str, mode: int) -> dict[str, str]:
        """A secret, for `run`: the file `file` with these permissions in SECRETS of a service's container."""
        with engine_errors(f"the secret {name} could not be made"):
            made = self._client.api.create_secret(name, data, labels=self._labels)
        reference = docker.types.SecretReference(made["ID"], name, file, mode=mode)
        return dict(reference)

    def make_network(self, name: str, configured_by: str) -> None:
        """The network that every node makes for itself as its own network `configured_by` says. It can have no labels;
        its name tells the fleet (`network_of`)."""
        body = {
            "Name": name, "Driver": "bridge", "Scope": "swarm", "Internal": True,
            "ConfigFrom": {"Network": configured_by},
        }  # fmt: skip
        make_network(self._client, body)

    def run(
        self,
        name: str,
        node: str,
        container: Mapping[str, Any],
        *,
        network: str,
        labels: Mapping[str, str],
        most_processes: int,
        most_memory: int = 0,
    ) -> str:
        """Start a service of one container on a node; returns the service's id. Nothing restarts it.

        Args:
            node: its id.
            container: arguments of `docker.types.ContainerSpec`.
            labels: of the container.
            most_memory: bytes; 0: no limit.
        """
        spec = docker.types.ContainerSpec(**container, labels=dict(labels))
        spec["Privileges"] = {"NoNewPrivileges": True}  # engines that do not know it ignore it
        task = docker.types.TaskTemplate(
            spec,
            restart_policy=docker.types.RestartPolicy("none"),
            placement=docker.types.Placement(constraints=[f"node.id=={node}"]),
            networks=[docker.types.NetworkAttachmentConfig(network)],
            log_driver=docker.types.DriverConfig("json-file", {"max-size": "1m"}),
            resources=_limits(most_processes, most_memory),
        )
        mode, endpoint = docker.types.ServiceMode("replicated", 1), docker.types.EndpointSpec("dnsrr")
        with engine_errors(f"the service {name} could not be made"):
            made = self._client.api.create_service(task, name, labels=self._labels, mode=mode, endpoint_spec=endpoint)
        return str(made["ID"])

    def tasks(self, services: Collection[str]) -> dict[str, Task]:
        """The task of each of these services that has one, by service."""
        with engine_errors("the Swarm's tasks cannot be listed"):
            rows = self._client.api.tasks(filters={"service": list(services)}) if services else []
        return {row["ServiceID"]: _task(row) for row in sorted(rows, key=lambda row: str(row["CreatedAt"]))}

    def wait_running(
        self, services: Mapping[str, str], deadline_s: float, go_on: Callable[[], None] = lambda: None
    ) -> dict[str, str]:
        """Container by name, for services by name, when all run. `go_on` is called repeatedly and ends it by raising.
        Raises FleetError: one did not come up; says why."""
        deadline = time.monotonic() + deadline_s
        while True:
            go_on()
            tasks = self.tasks(services.values())
            for name, service in services.items():
                task = tasks.get(service)
                if task is not None and task.state in FAILED:
                    raise FleetError(f"{name} did not start: {task.error or task.state}", hint=_hint(task.error))
                if time.monotonic() > deadline and (task is None or task.state != RUNNING):
                    raise _too_late(f"{name} did not start within {deadline_s:.0f} s", task)
            if len(tasks) == len(services) and all(task.state == RUNNING for task in tasks.values()):
                return {name: tasks[service].container for name, service in services.items()}
            time.sleep(LOOK_S)

    def remove_service(self, service: str) -> None:
        """Does nothing if it is gone."""
        with contextlib.suppress(docker.errors.APIError):
            self._client.api.remove_service(service)

    def remove_all(self, fleet_id: str) -> None:
        """Remove the services, the network and the secrets of a fleet."""
        chosen = {"label": f"{FLEET}={fleet_id}"}
        with contextlib.suppress(docker.errors.APIError):
            for service in self._client.services.list(filters=chosen):
                self.remove_service(service.id)
            self.remove_network(fleet_id)
            for secret in self._client.secrets.list(filters=chosen):
                _until_gone(secret.remove)

    def remove_network(self, fleet_id: str) -> None:
        """When no task uses it any more."""
        _until_gone(lambda: self._client.networks.get(network_of(fleet_id)).remove())

    def remove_dead(self) -> None:
        """Remove what fleets have left whose orchestrator is certainly dead."""
        with contextlib.suppress(docker.errors.APIError):
            made = [*self._client.services.list(), *self._client.secrets.list()]
            labels = [each.attrs["Spec"].get("Labels") or {} for each in made]
            for fleet_id in {each[FLEET] for each in labels if FLEET in each and is_orphan(each)}:
                self.remove_all(fleet_id)


def network_of(fleet_id: str) -> str:
    """The name of a fleet's network of the Swarm."""
    return f"edgebed-{fleet_id}"


def _limits(processes: int, memory: int) -> docker.types.Resources:
    """Limits of processes and memory, and none of CPUs: after it the engine would refuse period and quota."""
    limits = docker.types.Resources()
    limits["Limits"] = {"Pids": processes, **({"MemoryBytes": memory} if memory else {})}
    return limits


def _until_gone(remove: Any) -> None:
    """Try until it is removed: a network or secret is in use for as long as a task is."""
    deadline = time.monotonic() + GONE_S
    while time.monotonic() < deadline:
        try:
            remove()
            return
        except docker.errors.NotFound:
            return
        except docker.errors.APIError:
            time.sleep(LOOK_S)


def _found(node: Mapping[str, Any]) -> Found:
    spec, status, description = node["Spec"], node["Status"], node.get("Description") or {}
    state, availability = str(status.get("State")), str(spec.get("Availability"))
    down = state if state != "ready" else availability if availability != "active" else ""
    cores = (description.get("Resources") or {}).get("NanoCPUs", 0) / 1e9
    version = str((description.get("Engine") or {}).get("EngineVersion") or "")
    name, address = str(description.get("Hostname") or node["ID"]), str(status.get("Addr") or "")
    return Found(str(node["ID"]), name, address, cores, down, version)


def _task(row: Mapping[str, Any]) -> Task:
    status = row["Status"]
    container = (status.get("ContainerStatus") or {}).get("ContainerID") or ""
    at_s = dt.datetime.fromisoformat(status["Timestamp"]).timestamp()
    return Task(row["ServiceID"], str(status["State"]), str(container), str(status.get("Err") or ""), at_s)


def _too_late(what: str, task: Task | None) -> FleetError:
    if task is None:
        return FleetError(f"{what}: it is not yet given to a node", hint="docker node ls")
    hint = "docker node ls"
    if task.state == "preparing":
        hint = "the node still fetches or unpacks the image: `docker pull` it there before, or load it (docs/swarm.md)"
    return FleetError(f"{what}: it is {task.state} {task.error}".rstrip(), hint=hint)


def _hint(error: str) -> str:
    if "No such image" in error or "not found" in error:
        return (
            "the node has not this image: edgebed fleet push-image FLEET loads it on every node; from a registry the "
            "node's engine must be able to pull it (docs/swarm.md)"
        )
    if "bind source path does not exist" in error:
        return "the node's engine has another socket: name it as `socket` of the node in the fleet file"
    return "docker service ps --no-trunc SERVICE says more"
