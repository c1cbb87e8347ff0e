"""Faults in mid-round, on a real fleet and with each broker: the run ends, and the records say what happened.

The tests of one broker share a standing fleet, as one run after the other does for a user: what a fault leaves behind
would show in the next test.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from edgebed.link.endpoint import ReceivedTransfer
from edgebed.wire.messages import Upload
from orchestrator.experiment import Experiment
from orchestrator.records.types import (
    DeviceJoined,
    DeviceOut,
    Fault,
    LimitsSet,
    Record,
    RoundFinished,
    RunFinished,
    TaskSent,
    UploadReceived,
)
from orchestrator.rounds.driver import RoundDriver
from orchestrator.rounds.settings import QUEUED_UPLOADS
from orchestrator.training.server import HalfTrainer
from tests.component._faults import pid_of
from tests.e2e.rig import FleetUp, Rig, experiment, fleet_up
from tests.hangs import COMMAND_S

pytestmark = [pytest.mark.root, pytest.mark.mosquitto, pytest.mark.asyncio(loop_scope="module")]

ALL = ("dev-1", "dev-2", "dev-3")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["mosquitto", "embedded"])
async def fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[FleetUp]:
    folder = tmp_path_factory.mktemp(request.param)
    async with fleet_up(folder, experiment(), broker=request.param) as controller:
        yield controller


def short(**training: Any) -> Experiment:
    """Rounds of about half a second."""
    return experiment(max_batches=16, **training)


async def mid_round(run: Rig, device: str, round: int = 1) -> None:
    """Return when the device has sent features in the round."""
    await run.expect(UploadReceived, lambda r: r.device == device and r.round == round)


async def back_in_a_round(run: Rig, device: str, after: Record) -> RoundFinished:
    """The first round after a record into which the device's work was merged."""
    return await run.expect(RoundFinished, lambda r: device in r.merged and r.at_ns > after.at_ns)


def shell(pid: int, *command: str) -> None:
    """Run a command in the network namespace of a process."""
    subprocess.run(["nsenter", f"--net=/proc/{pid}/ns/net", *command], check=True, timeout=COMMAND_S)


def interface(pid: int) -> str:
    """The device's one interface beside loopback."""
    command = ["nsenter", f"--net=/proc/{pid}/ns/net", "ip", "-o", "link"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMMAND_S).stdout.splitlines()
    (name,) = {line.split(": ")[1].split("@")[0] for line in lines} - {"lo"}
    return name


@contextlib.contextmanager
def link_down(pid: int) -> Iterator[None]:
    name = interface(pid)
    shell(pid, "ip", "link", "set", name, "down")
    try:
        yield
    finally:
        shell(pid, "ip", "link", "set", name, "up")


async def finished(run: Rig) -> list[RoundFinished]:
    await run.finish()
    assert [end.why for end in run.of(RunFinished)] == ["rounds done"]
    return run.of(RoundFinished)


async def test_a_killed_agent_costs_its_own_work_and_comes_back_limited(fleet: FleetUp, tmp_path: Path) -> None:
    async with fleet.run(short(rounds=100), tmp_path) as run:
        await mid_round(run, "dev-2")
        os.kill(run.pid("dev-2"), signal.SIGKILL)
        out = await run.expect(DeviceOut, lambda r: r.device == "dev-2")
        assert (out.round, out.how) == (1, "lost")
        await run.expect(DeviceJoined, lambda r: r.device == "dev-2" and r.again)
        limits = await run.expect(LimitsSet, lambda r: r.device == "dev-2" and r.why == "rejoin")
        assert limits.held_cpus == pytest.approx(0.3, rel=0.01)
        assert (await back_in_a_round(run, "dev-2", limits)).merged == ALL
        assert run.of(RoundFinished)[1].merged == ("dev-1", "dev-3")


async def test_a_frozen_agent_is_given_up_for_want_of_progress_and_comes_back(fleet: FleetUp, tmp_path: Path) -> None:
    async with fleet.run(short(rounds=100), tmp_path) as run:
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
        await back_in_a_round(run, "dev-1", out)
        rounds = run.of(RoundFinished)
        assert rounds[1].merged == rounds[2].merged == ("dev-2", "dev-3")
        assert "dev-1" not in {r.device for r in run.of(TaskSent) if r.round == 2}, "it is known to be away"


async def test_a_cut_link_costs_the_round_and_the_device_comes_back(fleet: FleetUp, tmp_path: Path) -> None:
    async with fleet.run(short(rounds=100), tmp_path) as run:
        await mid_round(run, "dev-3")
        with link_down(run.pid("dev-3")):
            out = await run.expect(DeviceOut, lambda r: r.device == "dev-3")
        assert out.how == "lost"
        joined = await run.expect(DeviceJoined, lambda r: r.device == "dev-3" and r.again and r.at_ns > out.at_ns)
        await back_in_a_round(run, "dev-3", joined)
        assert "dev-3" not in run.of(RoundFinished)[1].merged


async def test_a_link_cut_while_uploads_queue_costs_one_round(
    fleet: FleetUp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server half is slow, so that the device's uploads wait on both sides when its link goes down."""
    full = slow_server_half(monkeypatch, "dev-3", 0.4)
    async with fleet.run(short(rounds=100), tmp_path) as run:
        async with asyncio.timeout(30):
            await full.wait()
        monkeypatch.undo()
        with link_down(run.pid("dev-3")):
            out = await run.expect(DeviceOut, lambda r: r.device == "dev-3")
        assert (out.round, out.how) == (0, "lost")
        await back_in_a_round(run, "dev-3", out)


def slow_server_half(monkeypatch: pytest.MonkeyPatch, device: str, seconds: float) -> asyncio.Event:
    """Every step of the device's server half takes so much longer. The event is set when an upload of the device waits
    because those before it, as many as may, still wait for the server half."""
    full, used, submit, deliver = asyncio.Event(), list[int](), HalfTrainer.submit, RoundDriver.deliver

    async def slowed(self: HalfTrainer, who: str, batch: int, tensors: Any) -> Any:
        if who != device:
            return await submit(self, who, batch, tensors)
        await asyncio.sleep(seconds)
        result = await submit(self, who, batch, tensors)
        used.append(batch)
        return result

    async def watched(self: RoundDriver, inbound: ReceivedTransfer) -> None:
        waiting = inbound.header.batch - len(used) if isinstance(inbound.header, Upload) else 0
        if inbound.peer == device and waiting >= QUEUED_UPLOADS:
            full.set()
        await deliver(self, inbound)

    monkeypatch.setattr(HalfTrainer, "submit", slowed)
    monkeypatch.setattr(RoundDriver, "deliver", watched)
    return full


async def test_a_restarted_broker_costs_nobody_anything(fleet: FleetUp, tmp_path: Path) -> None:
    async with fleet.run(short(rounds=4, liveness_s=30.0), tmp_path) as run:
        await mid_round(run, "dev-1")
        await run.controller.broker.restart()
        rounds = await finished(run)
        assert not run.of(DeviceOut)
        assert all(r.merged == ALL for r in rounds)


@pytest.mark.parametrize("fleet", ["mosquitto"], indirect=True)
async def test_a_second_agent_with_a_device_s_name_is_named_and_sent_away(fleet: FleetUp, tmp_path: Path) -> None:
    async with fleet.run(short(rounds=100), tmp_path) as run:
        await mid_round(run, "dev-1")
        rival = await second_agent(run, "dev-1")
        try:
            fault = await run.expect(Fault, lambda r: r.device == "dev-1" and "two agents call themselves" in r.what)
            async with asyncio.timeout(30):
                assert await rival.wait() == 0
        finally:
            if rival.returncode is None:
                rival.kill()
                await rival.wait()
        assert f"process {rival.pid}" in fault.what
        await back_in_a_round(run, "dev-1", fault)
        assert not run.of(DeviceOut)
        assert all(r.merged == ALL for r in run.of(RoundFinished))


async def second_agent(run: Rig, device: str) -> asyncio.subprocess.Process:
    """Another agent of the same device, as when somebody starts a board twice."""
    controller = run.controller
    broker = controller.broker
    shard = next(run.request.path.parent.parent.glob(f"*/shards/{device}.safetensors"), None)
    assert shard is not None
    access = broker.access("127.0.0.1", device)
    url = f"mqtt://{access.username}:{access.password}@127.0.0.1:{access.port}"
    arguments = ("--fleet", controller.fleet_id, "--device", device, "--shard", str(shard))
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "edge_agent", *arguments), env=os.environ | {"EDGEBED_BROKER": url}
    )


@pytest.mark.parametrize("fleet", ["mosquitto"], indirect=True)
async def test_a_device_that_joins_late_works_from_then_on(
    fleet: FleetUp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = fleet.controller
    gate = hold_restarts(monkeypatch, controller.backend)
    os.kill(standing_pid(fleet, "dev-2"), signal.SIGKILL)
    async with asyncio.timeout(30):
        while "dev-2" in controller.membership.present():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    async with fleet.run(short(rounds=100), tmp_path) as run:
        first = await run.expect(RoundFinished, lambda r: r.round == 0)
        assert first.merged == ("dev-1", "dev-3")
        gate.set()
        limits = await run.expect(LimitsSet, lambda r: r.device == "dev-2" and r.why == "rejoin")
        assert limits.held_cpus == pytest.approx(0.3, rel=0.01)
        assert (await back_in_a_round(run, "dev-2", limits)).merged == ALL
        assert not run.of(DeviceOut)


def hold_restarts(monkeypatch: pytest.MonkeyPatch, backend: Any) -> asyncio.Event:
    """The backend starts no agent again before the event is set."""
    gate, restart = asyncio.Event(), backend.restart

    async def held(device: str) -> None:
        await gate.wait()
        await restart(device)

    monkeypatch.setattr(backend, "restart", held)
    return gate


def standing_pid(fleet: FleetUp, device: str) -> int:
    return pid_of(fleet.controller, device)
