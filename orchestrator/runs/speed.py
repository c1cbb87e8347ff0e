"""The speed that devices keep: that of their host, or that of a reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from edgebed.errors import UsageError
from edgebed.pacing import HOST
from edgebed.wire.messages import Assignment, Cost
from orchestrator.fleet.host.reference_loop import loop_s
from orchestrator.fleet.spec.profile import FleetSpec, Speed
from orchestrator.references.reference import load_reference
from orchestrator.references.task_costs import TaskCosts
from orchestrator.rounds.settings import no_costs
from orchestrator.training.slot import HeldTo

HEAD_ROOM = 1.6
"""Quotas ÷ what this host needs on average. The same piece takes some hosts a third more CPU time under a quota than
without, and it varies by a tenth and more from one to the next (docs/throttling.md)."""

MARGIN = 1.1
"""By which the host may become slower after it was measured."""


def at_wanted_speed(spec: FleetSpec) -> FleetSpec:
    """The fleet with the speed that its file wants, as this host can keep it. Runs the reference loop for a moment.

    Raises:
        UsageError: there is no such reference, or a device cannot be held to it.
    """
    name = spec.wanted_speed.partition(" ")[2].strip()
    if not name:
        return spec
    reference = load_reference(name)
    if spec.unlimited:
        raise UsageError(
            f"{', '.join(spec.unlimited)} have no limits, so nothing holds them to the reference {reference.name}",
            hint="give these boards `limit: true` and a profile, or use speed: host",
        )
    cuda = [device.name for device in spec.devices if device.accelerator == "cuda"]
    if cuda:
        raise UsageError(
            f"{', '.join(cuda)} train on a GPU, whose work is not CPU time and cannot be held to a reference",
            hint="use speed: host, or accelerator: cpu",
        )
    index = reference.index_s / loop_s()
    return msgspec.structs.replace(spec, speed=Speed(name, MARGIN / index, index, HEAD_ROOM))


class KeptSpeed(msgspec.Struct, frozen=True):
    """What a fleet is held to.

    Attributes:
        name: of the reference, or `host`.
        costs: of the pieces of a device's task on it; {}: devices keep no reference's time.
        server: the same of a server with CPUs of its own; None: it keeps none.
    """

    name: str = HOST
    costs: Callable[[str, Assignment], dict[str, Cost]] = no_costs
    server: HeldTo | None = None


def kept_speed(spec: FleetSpec, cpus: Mapping[str, float]) -> KeptSpeed:
    """Reads the reference, if there is one, once.

    Args:
        cpus: of the devices, as they are when a task is sent.

    Raises:
        UsageError: as `load_reference`.
    """
    speed = spec.speed
    if not speed.reference:
        return KeptSpeed()
    reference = load_reference(speed.reference)
    known = TaskCosts(reference)
    server = None if spec.server_cpus is None else HeldTo(known.of_half, speed.index)
    return KeptSpeed(
        reference.name,
        lambda device, assignment: known.of(msgspec.structs.replace(assignment, cpus=cpus[device])),
        server,
    )
