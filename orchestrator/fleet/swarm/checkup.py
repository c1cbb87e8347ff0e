"""What `edgebed doctor` says of a Docker Swarm, and of a fleet on it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from edgebed.errors import EdgebedError, lasting
from edgebed.wire.boards import MOST_CLOCK_ERROR_S
from orchestrator.fleet.host.checkup import Check, DeviceFit, FleetFit
from orchestrator.fleet.spec.profile import FleetSpec
from orchestrator.fleet.spec.swarm import SwarmFile
from orchestrator.fleet.swarm.clocks import HINT, NOTED_S, Clock
from orchestrator.fleet.swarm.placement import Found, choose_nodes, dilation_of_nodes, place


class Swarm(msgspec.Struct, frozen=True):
    """What was found."""

    nodes: tuple[Found, ...] = ()
    own: str = ""  # the id of this host's node; "" if the engine is elsewhere
    image: bool = False  # this host's engine has the agent's image
    clocks: tuple[Clock, ...] = ()  # of the nodes that answer; `clocks_why`: why none was asked
    clocks_why: str = ""
    # `error`, `hint`: why this engine manages no Swarm, and what to do; then the rest is empty
    error: str = ""
    hint: str = ""


def check_swarm(swarm: Swarm, needed: bool) -> Iterator[Check]:
    """The rows of the table. `needed`: the backend is `swarm`; otherwise an engine without a Swarm has no rows."""
    if swarm.error:
        if needed:
            yield Check("Swarm", "none", swarm.error, swarm.hint)
        return
    yield _nodes(swarm, needed)
    yield _versions(swarm)
    yield _clocks(swarm, needed)
    yield Check(
        "image on the nodes",
        f"{'there' if swarm.image else 'not yet built'} on this host; not known of the others",
        "" if swarm.image else "it is built when a fleet starts, and the nodes do not have it",
        "" if swarm.image else "edgebed fleet push-image FLEET.yaml --to … brings it to the nodes",
        needed=False,
    )


def _nodes(swarm: Swarm, needed: bool) -> Check:
    ready, down = [node for node in swarm.nodes if not node.down], [node for node in swarm.nodes if node.down]
    found = f"{len(ready)} of {len(swarm.nodes)} nodes ready: " + ", ".join(
        f"{node} ({node.cores:g} cores)" for node in ready
    )
    lack = ", ".join(f"{node} is {node.down}" for node in down)
    if not ready:
        lack = f"no node can hold devices: {lack}"
    return Check("Swarm", found, lack, "docker node ls; docker node update" if lack else "", needed and not ready)


def _clocks(swarm: Swarm, needed: bool) -> Check:
    """Silent nodes are no lack: many networks do not let the question through, and a run measures over TLS."""
    silent = {str(node) for node in swarm.nodes if not node.down} - {clock.node for clock in swarm.clocks}
    not_known = f"not known of {', '.join(sorted(silent))}: {swarm.clocks_why or 'no answer'}" if silent else ""
    within = max((abs(clock.offset_s) + clock.error_s for clock in swarm.clocks), default=0.0)
    known = f"{len(swarm.clocks)} within {lasting(within)} of this host's" if swarm.clocks else ""
    wrong = [clock for clock in swarm.clocks if clock.wrong_s > NOTED_S]
    fatal = any(clock.wrong_s > MOST_CLOCK_ERROR_S for clock in wrong)
    found = "; ".join(text for text in (known, not_known) if text)
    return Check("clocks of the nodes", found, ", ".join(map(str, wrong)), HINT if wrong else "", needed and fatal)


def _versions(swarm: Swarm) -> Check:
    counted = Counter(node.version or "not known" for node in swarm.nodes)
    found = ", ".join(f"Docker {version} on {count}" for version, count in counted.items())
    several = len(counted) > 1
    lack = "the nodes have different versions of Docker" if several else ""
    return Check("engines of the nodes", found, lack, "it may do; else install the same" if several else "", False)


def fit_swarm(spec: FleetSpec, swarm: Swarm) -> FleetFit:
    """Whether a fleet fits the nodes that are there, and its dilation."""
    lack = hint = ""
    try:
        nodes = choose_nodes(swarm.nodes, spec.swarm or SwarmFile(), swarm.own, spec.reserve_cpus)
        dilation: float | None = dilation_of_nodes(place(spec, nodes, swarm.own), [spec], "auto")
    except EdgebedError as error:
        dilation, lack, hint = None, swarm.error or str(error), swarm.hint or error.hint
    devices = tuple(
        DeviceFit(
            device.name, device.profile.limits.dilated(dilation or 1.0), "" if dilation else "the fleet does not fit"
        )
        for device in spec.devices
    )
    return FleetFit(dilation, devices, lack, hint)
