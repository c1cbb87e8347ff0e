"""The nodes of a Swarm under their helpers: started, proved, cleaned, watched."""

from __future__ import annotations

import asyncio
import contextlib
import io
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import docker.errors
import docker.types

from edgebed.errors import CapacityError, FleetError
from orchestrator.fleet.engine import (
    FLEET,
    dead_things,
    engine_errors,
    make_network,
    remove_fleet,
    remove_named,
)
from orchestrator.fleet.many_hosts import NodeReading
from orchestrator.fleet.ownership import OWNER, is_orphan
from orchestrator.fleet.swarm.clocks import notes, refuse_wrong
from orchestrator.fleet.swarm.node_link import NodeLink, Told
from orchestrator.fleet.swarm.placement import Node

PROOF_S, PROVED = 1.0, 0.9
"""Seconds for which all nodes are busy at once, and the share of its room that each must give."""

PING_S, LOST_S = 1.0, 6.0
"""Seconds between two questions to a helper, and without an answer until its node counts as lost."""

GONE_S, LOOK_S = 20.0, 0.1


async def prove(links: Sequence[NodeLink]) -> None:
    """Have every node give all its room at once. Raises CapacityError with what each gave."""
    proofs = await asyncio.gather(
        *(link.call("busy", PROOF_S + 20, cpus=link.node.room, seconds=PROOF_S) for link in links)
    )
    given = [proof["cpu_s"] / PROOF_S for proof in proofs]
    pairs = list(zip(given, (link.node for link in links), strict=True))
    if all(cpus >= PROVED * node.room for cpus, node in pairs):
        return
    rows = "; ".join(f"{node.name} gave {cpus:.2f} of {node.room:.2f}" for cpus, node in pairs)
    raise CapacityError(
        f"the nodes do not give the CPUs that they state when all are busy at once: {rows}",
        hint="state fewer `cores` in the fleet file: engines that share a machine each report all its cores; or end "
        "other programs there",
    )


async def compare_clocks(links: Mapping[str, NodeLink], notify: Callable[[str], None]) -> dict[str, Told]:
    """What each node tells at the start, its clocks above all; `notify` gets a line for each that is wrong. Raises
    FleetError: clocks are so wrong that TLS would fail."""
    told = dict(zip(links, await asyncio.gather(*(link.quickest_facts() for link in links.values())), strict=True))
    clocks = [each.clock for each in told.values()]
    refuse_wrong(clocks)
    for line in notes(clocks):
        notify(line)
    return told


def reading(node: Node, first: Told, last: Told, cpus: float) -> NodeReading:
    """The figures of a node, from what its helper told.

    Args:
        first, last: what its helper told at the start and now.
        cpus: the quotas of its devices together.
    """
    facts = last.facts
    return NodeReading(
        name=node.name,
        machine=facts["machine"],
        cores=facts["cores"],
        at_s=facts["at_s"],
        used_s=facts["used_s"],
        stolen_s=facts["stolen_s"],
        helper_s=facts["helper_s"],
        cpus=min(cpus, facts["cores"]),
        load=facts["load"],
        clock_s=last.clock.offset_s,
        clock_error_s=last.clock.error_s,
        drift_s=last.steady.offset_s - first.steady.offset_s,
    )


async def watch(link: NodeLink, told: Callable[[Told], None], lost: Callable[[str], None]) -> None:
    """Ask a helper again and again for its facts, and pass them to `told`; call `lost(why)` once its node counts as
    lost, and return."""
    answered = time.monotonic()
    why = ""
    while True:
        await asyncio.sleep(PING_S)
        try:
            heard = await link.facts(LOST_S / 2)
        except FleetError as error:
            why = str(error)
        else:
            told(heard)
            if heard.facts["engine"]:
                answered = time.monotonic()
            why = "its engine does not answer"
        if time.monotonic() - answered > LOST_S:
            lost(why)
            return


# ---- what is made on a node; these calls block -----------------------------------------------------------------------


def configure_network(engine: Any, name: str, subnet: str, gateway: str, labels: Mapping[str, str]) -> None:
    """What this node's part of a network of the Swarm is like: devices do not reach each other."""
    body = {
        "Name": name, "ConfigOnly": True, "Labels": dict(labels),
        "IPAM": {"Config": [{"Subnet": subnet, "Gateway": gateway}]},
        "Options": {"com.docker.network.bridge.enable_icc": "false"},
    }  # fmt: skip
    make_network(engine, body)


def volume_of(fleet_id: str, device: str) -> str:
    return f"edgebed-{fleet_id}-{device}"


def deliver(
    engine: Any,
    image: str,
    fleet_id: str,
    shards: Mapping[str, Path],
    name: str,
    labels: Mapping[str, str],
    plugins: Path | None = None,
) -> None:
    """Put each device's shard into a volume of its own, as the file `name`, and the folder `plugins` beside it."""
    with engine_errors("the shards could not be delivered"):
        mounts = []
        for device in shards:
            volume = engine.volumes.create(volume_of(fleet_id, device), labels=dict(labels))
            mounts.append(docker.types.Mount(f"/shards/{device}", volume.name, type="volume"))
        carrier = engine.containers.create(image, mounts=mounts, labels=dict(labels), network_mode="none")
        try:
            carrier.put_archive("/shards", _archive(shards, name, plugins))
        finally:
            carrier.remove(force=True)


def _archive(shards: Mapping[str, Path], name: str, plugins: Path | None) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for device, path in shards.items():
            info = tarfile.TarInfo(f"{device}/{name}")
            info.size, info.mode = path.stat().st_size, 0o444
            with path.open("rb") as file:
                tar.addfile(info, file)
            if plugins is not None:
                tar.add(plugins, f"{device}/plugins")
    return out.getvalue()


def remove_containers(engine: Any, fleet_id: str) -> None:
    """Remove the fleet's containers and volumes of a node."""
    chosen = {"label": f"{FLEET}={fleet_id}"}
    with contextlib.suppress(docker.errors.DockerException, OSError):
        remove_fleet(engine, fleet_id)
        _until_no(lambda: engine.containers.list(all=True, filters=chosen, ignore_removed=True))
        for volume in engine.volumes.list(filters=chosen):
            volume.remove(force=True)


def remove_network(engine: Any, name: str) -> None:
    with contextlib.suppress(docker.errors.DockerException, OSError):
        remove_named(engine, "network", name)


def remove_dead(engine: Any) -> None:
    """Remove containers, networks and volumes of a node whose orchestrator is certainly dead."""
    with contextlib.suppress(docker.errors.DockerException, OSError):
        for kind, thing in dead_things(engine):
            remove_named(engine, kind, thing.name)
        for volume in engine.volumes.list(filters={"label": OWNER}):
            if is_orphan(volume.attrs.get("Labels")):
                volume.remove(force=True)


def _until_no(look: Callable[[], Sequence[Any]]) -> None:
    deadline = time.monotonic() + GONE_S
    while look() and time.monotonic() < deadline:
        time.sleep(LOOK_S)
