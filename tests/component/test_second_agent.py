"""Two agents with one device's name: the one that joined later is sent away before it answers for the device."""

from __future__ import annotations

import asyncio
from pathlib import Path

import torch

from edge_agent.settings import AgentSettings
from orchestrator.records.types import DeviceOut, Fault, RoundFinished
from tests.component._fleet import FLEET, Fleet, fleet, make_agent, training

DTFL = {"name": "dtfl", "tier": 3}


async def played(folder: Path, second: bool) -> Fleet:
    """With so rare heartbeats, the second agent is there while the first round's tasks go out."""
    async with fleet(folder, {"dev-1": 24, "dev-2": 16}, heartbeat_s=30.0) as made:
        run = asyncio.create_task(made.play(DTFL, training(rounds=4)))
        if second:
            rival = make_agent(made, AgentSettings("", 0, "", "", FLEET, "dev-1", folder / "dev-1.safetensors"))
            async with asyncio.timeout(60):
                await rival.run()  # until it is told to end
        await run
        return made


async def test_a_second_agent_changes_no_bit_and_is_named(tmp_path: Path) -> None:
    alone = await played(tmp_path, second=False)
    beside = await played(tmp_path, second=True)
    (fault,) = beside.of(Fault)
    assert "two agents call themselves dev-1" in fault.what
    assert not beside.of(DeviceOut)
    assert [end.merged for end in beside.of(RoundFinished)] == [("dev-1", "dev-2")] * 4
    for name, value in alone.saved[-1].items():
        assert torch.equal(value, beside.saved[-1][name]), name
