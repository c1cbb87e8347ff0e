"""A run in containers: limits read back, a container killed and one paused in mid-round, nothing left at the end."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.records.types import (
    DeviceJoined,
    DeviceOut,
    LimitsSet,
    RoundFinished,
    RoundStarted,
    RunFinished,
    RunStarted,
    UploadReceived,
)
from tests.e2e.rig import Rig, experiment, rig

pytestmark = [pytest.mark.docker, pytest.mark.root]


def made_by(client: Any, fleet: str) -> list[str]:
    chosen = {"label": f"edgebed.fleet={fleet}"}
    containers = client.containers.list(all=True, filters=chosen, ignore_removed=True)
    return [thing.name for thing in (*containers, *client.networks.list(filters=chosen))]


@pytest.fixture
def engine() -> Iterator[Any]:
    import docker

    with contextlib.closing(docker.from_env()) as client:
        yield client


async def returns(run: Rig, device: str, after: DeviceOut) -> None:
    """The device joins again, perhaps in the round that lost it, gets its limits and takes part in a later round."""
    await run.expect(DeviceJoined, lambda r: r.device == device and r.again and r.at_ns > after.at_ns)
    limits = await run.expect(LimitsSet, lambda r: r.device == device and r.why == "rejoin" and r.at_ns > after.at_ns)
    assert limits.held_cpus == pytest.approx(0.3, rel=0.01)
    await run.expect(RoundFinished, lambda r: device in r.merged and r.at_ns > limits.at_ns)


async def lost_in_mid_round(run: Rig, device: str) -> DeviceOut:
    """Wait until the work of a device is given up, and for the end of that round."""
    out = await run.expect(DeviceOut, lambda r: r.device == device)
    assert out.how == "lost"
    ended = await run.expect(RoundFinished, lambda r: r.round == out.round)
    assert ended.merged == tuple(name for name in ("dev-1", "dev-2", "dev-3") if name != device)
    return out


async def uploads_in_a_new_round(run: Rig, device: str) -> None:
    last = max((r.round for r in run.of(RoundStarted)), default=0)
    await run.expect(UploadReceived, lambda r: r.device == device and r.round > last)


async def test_a_run_in_containers_survives_a_killed_and_a_paused_one(tmp_path: Path, engine: Any) -> None:
    async with rig(tmp_path, experiment(rounds=24), backend="docker") as run:
        fleet = run.controller.fleet_id
        assert len(made_by(engine, fleet)) == 6, "three containers, each with a network of its own"
        await uploads_in_a_new_round(run, "dev-2")
        engine.containers.get(f"edgebed-{fleet}-dev-2").kill()
        await returns(run, "dev-2", await lost_in_mid_round(run, "dev-2"))

        await uploads_in_a_new_round(run, "dev-1")
        paused = engine.containers.get(f"edgebed-{fleet}-dev-1")
        paused.pause()
        try:
            lost = await lost_in_mid_round(run, "dev-1")
        finally:
            paused.unpause()
        await returns(run, "dev-1", lost)

        await run.finish()
        (started,) = run.of(RunStarted)
        assert (started.backend, started.enforcement) == ("docker", "docker")
        assert [end.why for end in run.of(RunFinished)] == ["rounds done"]
        assert run.of(RoundFinished)[-1].merged == ("dev-1", "dev-2", "dev-3")
        for limits in run.of(LimitsSet):
            assert limits.held_cpus == pytest.approx(limits.cpus, rel=0.01)
            assert limits.held_uplink_bit_s == pytest.approx(limits.uplink_bit_s, rel=0.01)
            assert limits.held_downlink_bit_s == pytest.approx(limits.downlink_bit_s, rel=0.01)
    assert not made_by(engine, fleet)


HOG = """
import sys
open(sys.argv[1], "w").write("0")
held = []
while True:
    held.append(bytearray(b"x") * (16 << 20))
"""
"""Joins the container's memory cgroup and fills it."""


def memory_group(pid: int) -> Path:
    """The file that takes processes into the memory cgroup of a process, cgroup v1 or v2."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            root = Path("/sys/fs/cgroup") / controllers
            if (procs := root / path.lstrip("/") / "cgroup.procs").exists():
                return procs
    raise AssertionError(f"process {pid} has no memory cgroup")


def prefer_to_kill(pid: int) -> None:
    """The kernel's first choice where memory runs out."""
    Path(f"/proc/{pid}/oom_score_adj").write_text("1000")


async def test_a_container_out_of_memory_costs_one_round_and_is_named(tmp_path: Path, engine: Any) -> None:
    long_rounds = experiment(rounds=100, batch_size=4)  # memory runs out in the round in which the filling begins
    async with rig(tmp_path, long_rounds, "docker", "embedded") as run:
        await uploads_in_a_new_round(run, "dev-3")
        container = engine.containers.get(f"edgebed-{run.controller.fleet_id}-dev-3")
        agent = int(container.attrs["State"]["Pid"])
        prefer_to_kill(agent)
        group = memory_group(agent)
        hog = await asyncio.create_subprocess_exec(sys.executable, "-c", HOG, str(group))
        try:
            lost = await lost_in_mid_round(run, "dev-3")
        finally:
            with contextlib.suppress(ProcessLookupError):  # it ends with the container that it joined
                hog.kill()
            await hog.wait()
        assert "out of memory" in lost.why
        await returns(run, "dev-3", lost)
        assert [out.round for out in run.of(DeviceOut) if out.device == "dev-3"] == [lost.round]
