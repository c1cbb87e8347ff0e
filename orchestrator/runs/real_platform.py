"""The platform of real runs: a standing fleet, the trainer's process with the server's CPUs, and this host."""

from __future__ import annotations

import asyncio
import functools
import os
import platform
from contextlib import AsyncExitStack

import torch

from edgebed.limits.shell import which
from edgebed.pacing import LATE_S
from orchestrator.fleet.control.controller import FleetController
from orchestrator.fleet.host.cores import kernel_hz
from orchestrator.fleet.host.load import HostLoad
from orchestrator.fleet.host.server_quota import ServerQuota
from orchestrator.fleet.host.speed import watch_speed
from orchestrator.fleet.leftovers import loop_group
from orchestrator.fleet.mixed import many_hosts
from orchestrator.runs.platform import Platform
from orchestrator.runs.speed import kept_speed, measured_index
from orchestrator.training.process import TrainerProcess
from orchestrator.training.remote import RemoteTrainer
from orchestrator.training.slot import HeldTo


async def real_platform(
    stack: AsyncExitStack, controller: FleetController, calibrated: bool, trainer: TrainerProcess
) -> Platform:
    """The platform of runs on a standing fleet. `stack` ends what it starts: the server's quota, the watch of the host.

    Args:
        calibrated: whether the limits hold, as measured.
        trainer: ready.
    """
    kept = kept_speed(controller.spec, controller.cpus)
    held = await _limit_server(stack, controller, trainer, kept.server)
    speed = await stack.enter_async_context(watch_speed(loop_group(controller.fleet_id)))
    hosts = many_hosts(controller.backend)
    nodes = tuple if hosts is None else hosts.nodes
    load = HostLoad(speed, {"broker": controller.broker.pid, "trainer": trainer.process_id}, nodes)
    return Platform(
        fleet=controller,
        make_trainer=functools.partial(RemoteTrainer, trainer),
        evaluator=trainer,
        profile=trainer.profile,
        prepare=trainer.keep_context,
        guard=trainer.guard,
        server_slots=trainer.slots,
        held_server_cpus=held,
        calibrated=calibrated,
        host=host_facts(trainer.hardware),
        recording=load.recording,
        costs=kept.costs,
        held_server=kept.server,
        speed=kept.name,
        host_index=functools.partial(measured_index, controller.spec.speed.reference),
    )


async def _limit_server(
    stack: AsyncExitStack, controller: FleetController, trainer: TrainerProcess, held_to: HeldTo | None
) -> float | None:
    """Give the trainer's process the CPUs of the experiment's server, divided by the dilation. `stack` ends the process
    and removes its cgroup.

    Returns the quota as the kernel holds it; None if the server has no CPUs of its own, or is held without one."""
    spec = controller.spec
    if spec.server_cpus is None:
        return None
    factor, quota, held = controller.dilation, None, None
    if held_to is None or os.geteuid() == 0:
        cpus = spec.server_cpus * spec.speed.ceiling("") / factor
        quota = ServerQuota(
            controller.fleet_id, len(controller.names), cpus, controller.grain, controller.tick_us, factor
        )
        stack.callback(quota.close)
        stack.push_async_callback(trainer.close)
        held = await asyncio.to_thread(quota.open, trainer.pid)
    period_s = LATE_S if quota is None else quota.period_s
    settings = controller.grain == "pacing", period_s
    await trainer.limit(quota, spec.slot_cpus / factor, *settings, slots=spec.server_slots, held_to=held_to)
    return held


def host_facts(accelerator: str = "cpu") -> dict[str, str]:
    """This host, as the first record of a run describes it."""
    return {
        "cores": str(os.cpu_count()),
        "kernel": platform.release(),
        "hz": str(kernel_hz() or ""),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "accelerator": accelerator,
        "mosquitto": which("mosquitto") or "",
    }
