"""Real runs on boards: DTFL and FedAvg over the broker of the boards service, mixed fleets, and what is refused. The
boards are processes of this host that have joined as any board does."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from edgebed.errors import FleetError
from orchestrator.boards.members import with_facts
from orchestrator.fleet.spec.profile import load_fleet
from orchestrator.records.account import summarise
from orchestrator.records.reader import read
from orchestrator.records.types import (
    DeviceJoined,
    DeviceLeft,
    DeviceOut,
    LimitsSet,
    RoundFinished,
    RunStarted,
    TaskDelivered,
)
from orchestrator.runs import session
from orchestrator.runs.request import Watch
from tests.component._board_runs import Recorded, boards, lab, request
from tests.component._boards import Lab
from tests.waiting import until

__all__ = ["lab"]
pytestmark = pytest.mark.mosquitto


async def test_dtfl_and_fedavg_on_boards_only(lab: Lab, tmp_path: Path) -> None:
    """Its fleet takes no CPUs of this host, so it may stand beside another one."""
    wanted = request(tmp_path, "  - {board: b1}\n  - {board: b2, name: kitchen}\n", "{name: dtfl}, {name: fedavg}")
    async with boards(lab, b1=False, b2=False):
        running_ = asyncio.create_task(session.run_experiment(wanted, Watch(lab.said.append)))
        await until(lambda: bool(running_.done() or list(wanted.runs.glob("*/records.jsonl"))), 120)
        if not running_.done():
            with pytest.raises(FleetError, match=r"b2 works for the fleet lab \(f[0-9a-f]{8}, process"):
                async with session.standing_fleet(with_facts(load_fleet(tmp_path / "fleet.yaml"))):
                    pass
        await until(lambda: bool(running_.done() or list(wanted.runs.glob("*fedavg*/records.jsonl"))), 120)
        await lab.stop()  # the service restarts in mid-run
        await lab.start()
        folders = await asyncio.wait_for(running_, 120)
        await until(lambda: sum("connected" in line for line in lab.said) >= 2)
    for folder in folders:
        records = read(folder / "records.jsonl")
        (started,) = [each for each in records if isinstance(each, RunStarted)]
        assert (started.backend, started.enforcement, started.dilation) == ("boards", "unlimited", 1.0)
        assert [(each.name, each.board, each.unlimited, each.uplink_bit_s) for each in started.devices] == [
            ("b1", "b1", True, 0),
            ("kitchen", "b2", True, 0),
        ]
        assert all(each.held_cpus is None and each.unlimited for each in records if isinstance(each, LimitsSet))
        joined = [each for each in records if isinstance(each, DeviceJoined)]
        assert {each.device for each in joined} == {"b1", "kitchen"}
        assert all("torch_build" in each.host for each in joined)
        assert not [each for each in records if isinstance(each, DeviceOut)]
        summary = summarise(records)
        assert (len(summary.rounds), summary.unlimited) == (2, ["b1", "kitchen"])
        assert summary.timeline_residual_max is not None
        assert summary.timeline_residual_max < 0.02
    assert [path.name for path in lab.place.shards.glob("*.part")] == []


@pytest.mark.fleet
async def test_a_mixed_fleet_loses_an_agent_and_a_board_and_goes_on(
    lab: Lab, tmp_path: Path, uncalibrated: None
) -> None:
    """The service does not stand: the run starts it. The agent of b2 is killed; b1 leaves and returns, as the scenario
    says, and is revoked."""
    devices = "  - {board: b1}\n  - {board: b2}\n  - {profile: here.yaml, name: cpu}\n"
    leave = "scenario: [{round: 2, device: b1, do: leave, for_s: 1}]\n"
    wanted = request(tmp_path, devices, rounds=500, scenario=leave)
    async with boards(lab, b1=False, b2=False):
        await lab.stop()
        work = asyncio.create_task(session.run_experiment(wanted, Watch(lab.said.append)))
        run = Recorded(wanted.runs, work)
        joined = await run.expect(DeviceJoined, lambda each: each.device == "b2")
        await run.expect(TaskDelivered, lambda each: each.device == "b2")
        os.kill(int(joined.host["pid"]), signal.SIGKILL)
        out = await run.expect(DeviceOut, lambda each: each.device == "b2")
        assert "ended by signal 9" in out.why
        await run.expect(DeviceJoined, lambda each: each.device == "b2" and each.again)
        await run.expect(DeviceLeft, lambda each: (each.device, each.why) == ("b1", "the scenario took it away"))
        again = await run.expect(DeviceJoined, lambda each: each.device == "b1" and each.again)
        lab.revoke("b1")
        left = await run.expect(DeviceLeft, lambda each: each.device == "b1" and each.at_ns > again.at_ns)
        assert "revoked" in left.why
        await run.expect(
            RoundFinished,
            lambda each: each.at_ns > left.at_ns and {"b2", "cpu"} == set(each.merged),
        )
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
    assert not lab.place.running()
    (started,) = run.of(RunStarted)
    assert (started.backend, started.enforcement) == ("local", "software")
    assert [(each.name, each.unlimited) for each in started.devices] == [("b1", True), ("b2", True), ("cpu", False)]
    assert summarise(run.records()).unlimited == ["b1", "b2"]


async def test_where_a_board_trains_and_that_it_cannot_is_told_before_the_first_round(
    lab: Lab, tmp_path: Path, uncalibrated: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fleet file's word counts more than the board's environment."""
    monkeypatch.setenv("EDGEBED_ACCELERATOR", "cuda")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    async with boards(lab, b1=False):
        wanted = request(tmp_path, "  - {board: b1, name: jetson, accelerator: cpu}\n", rounds=1)
        (folder,) = await session.run_experiment(wanted, Watch(lab.said.append))
        (joined,) = [each for each in read(folder / "records.jsonl") if isinstance(each, DeviceJoined)]
        assert joined.host["accelerator"] == "cpu"
        wanted = request(tmp_path, "  - {board: b1, name: jetson, accelerator: cuda}\n", rounds=1)
        with pytest.raises(FleetError, match=r"jetson.*cannot train on cuda: torch .* is built for"):
            await session.run_experiment(wanted, Watch(lab.said.append))


@pytest.mark.docker
async def test_dtfl_on_a_board_and_a_container(lab: Lab, tmp_path: Path, uncalibrated: None) -> None:
    devices = "  - {board: b1}\n  - {profile: here.yaml, name: cpu}\n"
    wanted = request(tmp_path, devices, "{name: dtfl}", rounds=3, backend="docker")
    async with boards(lab, b1=False):
        (folder,) = await asyncio.wait_for(session.run_experiment(wanted, Watch(lab.said.append)), 120)
    records = read(folder / "records.jsonl")
    (started,) = [each for each in records if isinstance(each, RunStarted)]
    assert (started.backend, started.enforcement, started.dilation) == ("docker", "docker", 1.0)
    held = {each.device: each.held_cpus for each in records if isinstance(each, LimitsSet)}
    assert held == {"b1": None, "cpu": pytest.approx(0.3)}
    merged = [set(each.merged) for each in records if isinstance(each, RoundFinished)]
    assert merged == [{"b1", "cpu"}] * 3
