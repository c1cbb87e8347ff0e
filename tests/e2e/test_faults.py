"""Faults in mid-round, on a real fleet: the run ends, nothing hangs, the records say what happened."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from orchestrator.records.types import (
    DeviceJoined,
    DeviceOut,
    LimitsSet,
    RoundFinished,
    RunFinished,
    TaskSent,
    UploadReceived,
)
from tests.e2e.rig import Rig, experiment, rig

pytestmark = [pytest.mark.root, pytest.mark.mosquitto]


async def mid_round(run: Rig, device: str, round: int = 1) -> None:
    """Return when the device has sent features in the round."""
    await run.expect(UploadReceived, lambda r: r.device == device and r.round == round)


def shell(pid: int, *command: str) -> None:
    """Run a command in the network namespace of a process."""
    subprocess.run(["nsenter", f"--net=/proc/{pid}/ns/net", *command], check=True)


def interface(pid: int) -> str:
    """The device's one interface beside loopback."""
    command = ["nsenter", f"--net=/proc/{pid}/ns/net", "ip", "-o", "link"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    (name,) = {line.split(": ")[1].split("@")[0] for line in lines} - {"lo"}
    return name


async def finished(run: Rig) -> list[RoundFinished]:
    await run.finish()
    assert [end.why for end in run.of(RunFinished)] == ["rounds done"]
    return run.of(RoundFinished)


async def test_a_killed_agent_costs_its_own_work_and_comes_back_limited(tmp_path: Path) -> None:
    async with rig(tmp_path, experiment(rounds=6)) as run:
        await mid_round(run, "dev-2")
        os.kill(run.pid("dev-2"), signal.SIGKILL)
        out = await run.expect(DeviceOut, lambda r: r.device == "dev-2")
        assert (out.round, out.how) == (1, "lost")
        await run.expect(DeviceJoined, lambda r: r.device == "dev-2" and r.again)
        limits = await run.expect(LimitsSet, lambda r: r.device == "dev-2" and r.why == "rejoin")
        assert limits.held_cpus == pytest.approx(0.3, rel=0.01)
        rounds = await finished(run)
        assert rounds[1].merged == ("dev-1", "dev-3")
        assert rounds[-1].merged == ("dev-1", "dev-2", "dev-3")


async def test_a_frozen_agent_is_given_up_for_want_of_progress_and_comes_back(tmp_path: Path) -> None:
    async with rig(tmp_path, experiment(rounds=8)) as run:
        await mid_round(run, "dev-1")
        pid = run.pid("dev-1")
        os.kill(pid, signal.SIGSTOP)
        try:
            out = await run.expect(DeviceOut, lambda r: r.device == "dev-1")
            assert out.how == "lost"
            assert "no progress" in out.why
            await run.expect(RoundFinished, lambda r: r.round == 2)
        finally:
            os.kill(pid, signal.SIGCONT)
        rounds = await finished(run)
        assert rounds[1].merged == rounds[2].merged == ("dev-2", "dev-3")
        assert "dev-1" not in {r.device for r in run.of(TaskSent) if r.round == 2}, "it is known to be away"
        assert "dev-1" in rounds[-1].merged


async def test_a_cut_link_costs_the_round_and_the_device_comes_back(tmp_path: Path) -> None:
    async with rig(tmp_path, experiment(rounds=8)) as run:
        await mid_round(run, "dev-3")
        pid = run.pid("dev-3")
        name = interface(pid)
        shell(pid, "ip", "link", "set", name, "down")
        out = await run.expect(DeviceOut, lambda r: r.device == "dev-3")
        assert out.how == "lost"
        shell(pid, "ip", "link", "set", name, "up")
        await run.expect(DeviceJoined, lambda r: r.device == "dev-3" and r.again)
        rounds = await finished(run)
        assert "dev-3" not in rounds[1].merged
        assert "dev-3" in rounds[-1].merged


async def test_a_restarted_broker_costs_nobody_anything(tmp_path: Path) -> None:
    async with rig(tmp_path, experiment(rounds=4, liveness_s=30.0)) as run:
        await mid_round(run, "dev-1")
        await run.standing.broker.restart()
        rounds = await finished(run)
        assert not run.of(DeviceOut)
        assert all(r.merged == ("dev-1", "dev-2", "dev-3") for r in rounds)
