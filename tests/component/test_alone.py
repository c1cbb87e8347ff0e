"""An agent without an orchestrator ends by itself; one that is answered, or was only stopped, does not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from edge_agent.__main__ import settings_from
from edge_agent.agent import Agent
from edge_agent.settings import AgentSettings
from edge_agent.silence import Silence
from edge_agent.software_throttle import SoftwareThrottle
from edgebed.errors import LinkError
from edgebed.wire.messages import Configure, PhasesSeen, encode
from edgebed.wire.topics import Topics
from tests.component._fleet import warm_up_once, write_noise_shard
from tests.memory_link import MemoryHub, MemoryLink

BEAT_S = 0.02


def agent_over(hub: MemoryHub, folder: Path, alone_s: float) -> Agent:
    warm_up_once()
    write_noise_shard(folder / "d0.safetensors", 4)
    settings = AgentSettings("", 0, "", "", "f", "d0", folder / "d0.safetensors", alone_s)
    throttle = SoftwareThrottle()
    return Agent(settings, "i", MemoryLink(hub), throttle.link(MemoryLink(hub)), throttle)


async def test_an_agent_lives_while_its_heartbeats_are_answered_and_ends_after(tmp_path: Path) -> None:
    hub = MemoryHub()
    topics, orchestrator, beats = Topics("f"), MemoryLink(hub), 0
    quiet = asyncio.Event()

    def answer(topic: str, payload: bytes) -> None:
        nonlocal beats
        beats += 1
        if beats == 1:
            orchestrator.publish(topics.control_to("d0"), encode(Configure(1, 1, BEAT_S)))
        elif beats < 60:  # many times what an agent that hears nothing lives
            orchestrator.publish(topics.control_to("d0"), encode(PhasesSeen("i", 0)))
        else:
            quiet.set()

    orchestrator.subscribe(topics.control_from("d0"), answer)
    await orchestrator.open()
    work = asyncio.create_task(agent_over(hub, tmp_path, 5 * BEAT_S).run())
    async with asyncio.timeout(30):
        await asyncio.wait([work, asyncio.create_task(quiet.wait())], return_when="FIRST_COMPLETED")
        assert not work.done()
        with pytest.raises(LinkError, match="nothing was received from an orchestrator") as caught:
            await work
    assert "EDGEBED_ALONE_S" in caught.value.hint
    await orchestrator.close()


def test_time_in_which_the_agent_was_stopped_does_not_count() -> None:
    silence = Silence(10 * BEAT_S)
    silence.add(3600.0, BEAT_S)
    silence.add(3600.0, BEAT_S)
    for _ in range(6):
        silence.add(BEAT_S, BEAT_S)
    with pytest.raises(LinkError, match="from an orchestrator"):
        silence.add(BEAT_S, BEAT_S)


def test_for_ever_is_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    silence = Silence(0.0)
    for _ in range(100_000):
        silence.add(3600.0, BEAT_S)
    wanted = ["--broker", "mqtt://h", "--fleet", "f", "--device", "d", "--shard", "s"]
    assert settings_from(wanted).alone_s == 1800
    monkeypatch.setenv("EDGEBED_ALONE_S", "2.5")
    assert settings_from(wanted).alone_s == 2.5
    assert settings_from([*wanted, "--alone-s", "0"]).alone_s == 0
