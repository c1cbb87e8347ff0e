"""The speed that devices keep: that of their host, or that of a reference."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import msgspec

from edgebed.device.pieces import seconds
from edgebed.errors import UsageError
from edgebed.models.learning import task_at
from edgebed.models.staged import MODELS
from edgebed.pacing import HOST
from edgebed.wire.messages import Assignment, Cost
from edgebed.wire.settings import LearningTask, Optimizer
from orchestrator.calibration.head_room import Yardstick, measure_needs
from orchestrator.experiment import Experiment
from orchestrator.fleet.control.controller import FleetController
from orchestrator.fleet.host.reference_loop import loop_times
from orchestrator.fleet.spec.profile import FleetSpec, Limits
from orchestrator.fleet.spec.speed import Need, Speed
from orchestrator.records.types import HostIndex
from orchestrator.references.reference import load_reference
from orchestrator.references.task_costs import TaskCosts, check_spread
from orchestrator.rounds.settings import no_costs
from orchestrator.training.slot import HeldTo

MARGIN = 1.1
"""By which the host may become slower after it was measured."""

IN_TIME_S = 1.5
"""Longest batch by which a device is measured, where there is a smaller one."""

INDEX_S = 0.6
USUAL = "x86-avx512"
"""The reference with which hosts are compared that keep none."""

SMALL_TASK = Assignment(
    "", {"name": "resnet-tiny"}, 10, (1, 8, 8), 8, "output", batch_size=32, optimizer=Optimizer("adam")
)
"""About 10 ms a batch. Measures devices without an experiment, and those that are too slow for its batches."""


def at_wanted_speed(spec: FleetSpec) -> FleetSpec:
    """The fleet with the speed that its file wants, as the reference loop tells it. Runs the loop for a moment. Raises
    UsageError: there is no such reference, or a device cannot be held to it."""
    name = spec.wanted_speed.partition(" ")[2].strip()
    if not name:
        check_spread(spec.spread, None)
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
    index = reference.index_s / loop_times().s
    return msgspec.structs.replace(spec, speed=Speed(name, MARGIN / index, index=index))


def before_measuring(fleets: Sequence[FleetSpec], backend: str, dilation: str | float) -> Sequence[FleetSpec]:
    """The fleets as they are admitted first, with the speed of the first one. Where a dilation is given, it is known
    later whether they fit it; not on a Swarm, whose placement needs the index."""
    speed = fleets[0].speed
    if dilation != "auto" and backend != "swarm" and speed.reference:
        speed = msgspec.structs.replace(speed, demand=1e-3, unsure=speed.demand)
    return [msgspec.structs.replace(each, speed=speed) for each in fleets]


async def measured_speed(
    controller: FleetController, task: Assignment | None, notify: Callable[[str], None]
) -> FleetSpec:
    """The fleet with what its devices need to keep their reference's time. `task`: of the experiment."""
    spec = controller.spec
    by = await asyncio.to_thread(yardstick, spec.speed.reference, task, controller.limits)
    if by is None:
        notify("the reference does not know what a batch costs, so a small loop alone decides the quotas (the index)")
        return spec
    notify("measuring how much CPU time the devices need to keep up with the reference")
    needs = await measure_needs(controller.membership, controller.limits, by)
    mean, most = demand(spec, needs), max(need.p99 for need in needs.values())
    notify(f"1 CPU second of the reference takes {mean / MARGIN:.2f} s here on average, at most {most:.2f} s")
    return msgspec.structs.replace(spec, speed=msgspec.structs.replace(spec.speed, needs=needs, demand=mean))


def demand(spec: FleetSpec, needs: Mapping[str, Need]) -> float:
    """CPU seconds of this host for one of the reference: mean of the devices on it, by their CPUs, with a margin."""
    here = [(needs[device.name].mean, device.profile.limits.cpus) for device in spec.here]
    return MARGIN * sum(mean * cpus for mean, cpus in here) / sum(cpus for _, cpus in here) if here else 1.0


def whole_task(experiment: Experiment, task: LearningTask) -> Assignment:
    """Training of an experiment's whole model."""
    training = experiment.training
    stages = len(MODELS.create(experiment.model, "model").build(task))
    return task_at(
        "", experiment.model, task, stages, "output",
        batch_size=training.batch_size, optimizer=training.optimizer, codec=training.codec,
    )  # fmt: skip


def yardstick(name: str, task: Assignment | None, limits: Mapping[str, Limits]) -> Yardstick | None:
    """By what devices are measured: the task, or the small one where the slowest device takes too long for a batch of
    it. None: the reference does not know what such batches cost. `name`: of the reference; `limits`: in force."""
    costs, slowest = TaskCosts(load_reference(name)), min(each.cpus for each in limits.values())
    found = [
        Yardstick(msgspec.structs.replace(each, steps=10**6), kinds)
        for each in (task, SMALL_TASK)
        if each is not None and "batch" in (kinds := costs.of(each)) and seconds(kinds["batch"], each.batch_size) > 0
    ]
    return next((each for each in found if each.batch_s / slowest < IN_TIME_S), found[-1] if found else None)


def measured_index(name: str = "", seconds: float = INDEX_S) -> HostIndex:
    """How fast this host is now. `name`: of the reference that it is compared with; "": one that comes with Edgebed."""
    reference, found = load_reference(name or USUAL), loop_times(seconds)
    index = reference.index_s / found.s
    return HostIndex(reference.name, index, index * found.error_s / found.s, found.drift)


class KeptSpeed(msgspec.Struct, frozen=True):
    """What a fleet is held to."""

    name: str = HOST  # of the reference, or `host`
    # of the pieces of a device's task on it; {}: devices keep no reference's time
    costs: Callable[[str, Assignment], dict[str, Cost]] = no_costs
    server: HeldTo | None = None  # the same of a server with CPUs of its own; None: it keeps none


def kept_speed(spec: FleetSpec, cpus: Mapping[str, float]) -> KeptSpeed:
    """Reads the reference, if there is one, once. `cpus`: of the devices, as they are when a task is sent. Raises
    UsageError: as `load_reference`."""
    speed = spec.speed
    if not speed.reference:
        return KeptSpeed()
    reference = load_reference(speed.reference)
    known = TaskCosts(reference, spread=spec.spread)
    server = None if spec.server_cpus is None else HeldTo(known.of_half, speed.index)
    return KeptSpeed(
        reference.name,
        lambda device, assignment: known.of(msgspec.structs.replace(assignment, cpus=cpus[device])),
        server,
    )
