"""An agent that runs as a board tells what its machine's sensors read; any other agent does not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from edge_agent.agent import Agent
from edge_agent.settings import AgentSettings
from edge_agent.software_throttle import SoftwareThrottle
from edgebed.wire.messages import Configure, Presence, Shutdown, Status, decode_control, encode
from edgebed.wire.topics import Topics
from tests.component._fleet import warm_up_once, write_noise_shard
from tests.memory_link import MemoryHub, MemoryLink


async def heard(folder: Path, board: bool) -> tuple[Presence, Status]:
    """What an agent says when it joins, and a heartbeat: the first with readings, if there is one."""
    warm_up_once()
    write_noise_shard(folder / "d0.safetensors", 4)
    hub, topics, throttle = MemoryHub(), Topics("f"), SoftwareThrottle()
    orchestrator, states, beats = MemoryLink(hub), list[Presence](), list[Status]()
    enough = asyncio.Event()

    def on_state(topic: str, payload: bytes) -> None:
        message = decode_control(payload)
        assert isinstance(message, Presence)
        states.append(message)
        orchestrator.publish(topics.control_to("d0"), encode(Configure(1, 1, 0.02)))

    def on_control(topic: str, payload: bytes) -> None:
        message = decode_control(payload)
        if isinstance(message, Status):
            beats.append(message)
        if any(beat.board for beat in beats) or (not board and len(beats) > 5):
            enough.set()

    orchestrator.subscribe(topics.state("d0"), on_state)
    orchestrator.subscribe(topics.control_from("d0"), on_control)
    await orchestrator.open()
    settings = AgentSettings("", 0, "", "", "f", "d0", folder / "d0.safetensors", 30.0, board=board)
    agent = Agent(settings, "i", MemoryLink(hub), throttle.link(MemoryLink(hub)), throttle)
    async with asyncio.timeout(30):
        work = asyncio.create_task(agent.run())
        await enough.wait()
        orchestrator.publish(topics.control_to("d0"), encode(Shutdown("done")))
        await work
    await orchestrator.close()
    return states[0], next((beat for beat in beats if beat.board), beats[-1])


@pytest.mark.parametrize("board", [True, False])
async def test_only_a_board_tells_of_its_machine(tmp_path: Path, board: bool) -> None:
    presence, beat = await heard(tmp_path, board)
    assert ("sensors" in presence.host) == ("torch_build" in presence.host) == board
    assert bool(beat.board) == board
