"""Measures a device, fits a profile to it, and measures a device of this host under that profile in the same way.

Both are measured in turn, so that a host whose speed drifts changes both alike.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import platform
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path

import msgspec
import torch

from edgebed.datasets.shard import write_idle_shard
from edgebed.errors import LimitError, counted
from edgebed.limits.spec import Limits
from edgebed.link.probe_server import ProbeServer
from orchestrator.boards.members import with_facts
from orchestrator.fleet.control.controller import FleetController
from orchestrator.fleet.host.cores import usable_cores
from orchestrator.fleet.ownership import OwnedFolder
from orchestrator.fleet.spec.profile import DeviceSpec, FleetSpec, ProfileSpec
from orchestrator.look_alike.bench import Bench, Job
from orchestrator.look_alike.figures import (
    Figures,
    Row,
    Step,
    corrected,
    fitted_limits,
    median_step,
    memory_of,
    rows,
    source_of,
)
from orchestrator.runs.session import standing_fleet

TWIN = "look-alike"
RESERVE_CPUS = 0.5
"""Of this host for orchestrator and broker while the look-alike works."""

FREE_BIT_S = 100_000_000
"""The look-alike's rate before its profile is known. Only steps and round trips are measured then."""


class Outcome(msgspec.Struct, frozen=True):
    """The fitted profile, and the figures of both; no rows where this host is too small for the look-alike."""

    profile: ProfileSpec
    board: Figures
    rows: tuple[Row, ...]
    too_large: bool = False


async def measure(board: FleetSpec, name: str, job: Job, backend: str, notify: Callable[[str], None]) -> Outcome:
    """Measure the one device of the fleet `board`, and its look-alike.

    Args:
        name: what the profile is called, and of which board its source speaks.
        backend: of the look-alike.

    Raises:
        EdgebedError: with cause and hint.
    """
    room = usable_cores() - RESERVE_CPUS
    free = Limits(min(1.0, room), FREE_BIT_S, FREE_BIT_S, 4096)
    twin = FleetSpec(
        TWIN, backend, RESERVE_CPUS, (DeviceSpec(TWIN, ProfileSpec("host", free)),), Path.cwd() / "fleet.yaml"
    )
    async with contextlib.AsyncExitStack() as stack:
        folder = stack.enter_context(OwnedFolder("edgebed-data-"))
        both: list[FleetController] = []
        for spec in (twin, with_facts(board)):
            (device,) = [each.name for each in spec.devices]
            shard = folder / f"{len(both)}.safetensors"
            write_idle_shard(shard, samples=job.batch_size, task=job.model.task)
            fleet = standing_fleet(spec, dilation="off", shards={device: shard}, notify=notify)
            both.append(await stack.enter_async_context(fleet))
        twin_host, board_host = (each.backend.host_of(each.names[0]) for each in both)
        peer = await stack.enter_async_context(ProbeServer((twin_host, board_host), {board_host}))
        return await _measure(both[1], both[0], peer, name, job, room, notify)


async def _measure(
    board: FleetController,
    twin: FleetController,
    peer: ProbeServer,
    name: str,
    job: Job,
    room: float,
    notify: Callable[[str], None],
) -> Outcome:
    benches = Bench(board, board.names[0], peer, job), Bench(twin, TWIN, peer, job)
    presence = board.membership.devices[board.names[0]].presence
    facts = presence.host if presence else {}
    notify("measuring steps on the board and on this host, in turn")
    real, host = await _steps(benches, job, 1)  # a first estimate, which is corrected
    base_ms = await benches[1].latency_ms()
    notify("measuring the board's link")
    figures = Figures(real, await benches[0].link())
    limits = fitted_limits(figures, host, base_ms, memory_of(facts))
    source = source_of(name, facts, str(job), _host(), f"{dt.date.today():%Y-%m-%d}", metadata.version("edgebed"))
    profile = ProfileSpec(name, limits, source, look_alike_of=name)
    if limits.cpus > room:
        return Outcome(profile, figures, (), too_large=True)
    await _become(twin, profile, real, benches[1], notify)
    profile = corrected(profile, *await _steps(benches, job, job.repeats))
    await _become(twin, profile, real, benches[1], notify)
    real, like = await _steps(benches, job, job.repeats)
    figures = msgspec.structs.replace(figures, steps=real)
    return Outcome(profile, figures, tuple(rows(figures, Figures(like, await benches[1].link()))))


async def _become(
    twin: FleetController, profile: ProfileSpec, steps: Mapping[int, Step], bench: Bench, notify: Callable[[str], None]
) -> None:
    """Put the profile on the look-alike; without its latency where this host cannot delay packets. `steps`: those of
    the board, which the look-alike's will be like."""
    for cut, step in steps.items():
        bench.expect(cut, step.wall_s)
    notify(f"measuring the look-alike ({counted(profile.limits.cpus, 'CPU')}) and the board, in turn")
    try:
        await twin.change(TWIN, profile)
    except LimitError as error:
        if not profile.limits.latency_ms:
            raise
        notify(f"the look-alike is measured without its latency of {profile.limits.latency_ms:g} ms: {error}")
        limits = msgspec.structs.replace(profile.limits, latency_ms=0.0)
        await twin.change(TWIN, msgspec.structs.replace(profile, limits=limits))


async def _steps(benches: Sequence[Bench], job: Job, repeats: int) -> list[dict[int, Step]]:
    """By bench: the steps by cut."""
    found: list[dict[int, list[Step]]] = [{cut: [] for cut in job.cuts} for _ in benches]
    for _ in range(repeats):
        for cut in job.cuts:
            for steps, bench in zip(found, benches, strict=True):
                steps[cut].append(await bench.step(cut))
    return [{cut: median_step(taken) for cut, taken in steps.items()} for steps in found]


def _host() -> str:
    return f"the host {platform.node()} ({platform.machine()}, kernel {platform.release()}, torch {torch.__version__})"


def spread_cuts(stages: int, count: int) -> list[int]:
    """At most `count` cuts of a model of so many stages, from the first to the last before its end, evenly."""
    most = max(1, stages - 1)
    if count <= 1 or most == 1:
        return [most]
    return sorted({1 + round(i * (most - 1) / (min(count, most) - 1)) for i in range(min(count, most))})
