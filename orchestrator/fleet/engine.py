"""The Docker engine: a client, the labels of Edgebed's containers and networks, and their removal."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from ipaddress import IPv4Network
from typing import Any

import docker
import docker.errors

from edgebed.errors import FleetError
from orchestrator.fleet.ownership import OWNER, is_orphan

FLEET, DEVICE = "edgebed.fleet", "edgebed.device"


def connect(timeout_s: int = 1800) -> Any:
    """A client of the engine. The default timeout is long because a build may print nothing for minutes. Raises
    FleetError if no engine answers."""
    try:
        client = docker.from_env(timeout=timeout_s, max_pool_size=64)
        client.ping()
    except docker.errors.DockerException as error:
        raise FleetError(
            f"no Docker engine answers: {error}", hint="start Docker, set DOCKER_HOST, or use --backend local"
        ) from None
    return client


def make_network(client: Any, body: dict[str, Any]) -> None:
    """Make a network of a kind for which the SDK has no call. Raises FleetError with the engine's words."""
    api = client.api
    answer = api.post(f"{api.base_url}/v{api.api_version}/networks/create", json=body, timeout=60)
    if answer.status_code >= 400:
        raise FleetError(
            f"the network {body['Name']} could not be made: {answer.json().get('message', answer.status_code)}",
            hint="docker network ls; docker network prune",
        )


def remove_fleet(client: Any, fleet_id: str) -> None:
    """Remove every container and network of a fleet. Does not raise for things that are already gone."""
    chosen = {"label": f"{FLEET}={fleet_id}"}
    with contextlib.suppress(docker.errors.APIError):
        for container in client.containers.list(all=True, filters=chosen, ignore_removed=True):
            _remove("container", container)
        for network in client.networks.list(filters=chosen):
            _remove("network", network)


def dead_things(client: Any) -> list[tuple[str, Any]]:
    """(kind, container or network) of everything whose owner is certainly dead. Containers come first: a network can be
    removed only after its containers."""
    containers = client.containers.list(all=True, filters={"label": OWNER}, ignore_removed=True)
    networks = client.networks.list(filters={"label": OWNER})
    made = [("container", thing) for thing in containers] + [("network", thing) for thing in networks]
    return [(kind, thing) for kind, thing in made if is_orphan(_labels(thing))]


def used_subnets(client: Any) -> list[IPv4Network]:
    """Subnets of the engine's networks."""
    pools = [pool["Subnet"] for net in client.networks.list() for pool in net.attrs["IPAM"].get("Config") or []]
    return [IPv4Network(pool) for pool in pools if ":" not in pool]


def owners(client: Any) -> dict[str, tuple[str, bool]]:
    """Id of the fleet of every running container, and whether its owner is certainly dead, by the container's id."""
    containers = client.containers.list(filters={"label": FLEET}, ignore_removed=True)
    return {each.id: (_labels(each)[FLEET], is_orphan(_labels(each))) for each in containers}


def remove_named(client: Any, kind: str, name: str) -> None:
    """Remove a container or network. Does not raise if it is already gone."""
    with contextlib.suppress(docker.errors.APIError):
        _remove(kind, (client.containers if kind == "container" else client.networks).get(name))


def _remove(kind: str, thing: Any) -> None:
    with contextlib.suppress(docker.errors.APIError):
        thing.remove(**({"force": True} if kind == "container" else {}))


def _labels(thing: Any) -> dict[str, str]:
    return (thing.attrs.get("Config") or thing.attrs).get("Labels") or {}


@contextlib.contextmanager
def engine_errors(what: str) -> Iterator[None]:
    """Turn an error of the engine into a FleetError that begins with `what`."""
    try:
        yield
    except docker.errors.APIError as error:
        raise FleetError(f"{what}: {error.explanation or error}", hint="see the engine's log") from None
    except OSError as error:  # as are those of the SDK's connections
        raise FleetError(f"{what}: the engine cannot be reached: {error}", hint="is it still running?") from None
